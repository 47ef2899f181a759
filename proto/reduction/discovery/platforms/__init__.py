"""Read from each platform which hosts are reducers."""

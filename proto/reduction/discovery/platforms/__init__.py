"""Where each platform says which hosts are reducers."""

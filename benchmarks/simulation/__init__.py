"""A simulated network with the real cores of ranks and reducers."""

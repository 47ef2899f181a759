"""Which reducers and ranks there are, and which of them make an epoch."""

"""Which reducers and ranks exist, and which of them form an epoch."""

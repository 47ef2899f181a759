"""The operators' view of a reducer: its status and its metrics."""

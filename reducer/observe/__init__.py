"""What operators see of a reducer: its status and its metrics."""

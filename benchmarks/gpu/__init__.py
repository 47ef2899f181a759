"""Tools for GPUs."""

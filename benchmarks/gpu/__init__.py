"""Benchmarks of tensors on a GPU."""

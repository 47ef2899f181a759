"""Benchmarks with tensors on a GPU."""

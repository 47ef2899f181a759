"""`python -m benchmarks.shaped`, and other tools that need shaped links."""

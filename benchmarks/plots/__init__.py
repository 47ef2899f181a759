"""`python -m benchmarks.plots`: figures from the results."""

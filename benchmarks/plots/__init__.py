"""`python -m benchmarks.plots`: figures and a page from the results."""

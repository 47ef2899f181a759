"""`python -m benchmarks.gil`: a training loop that computes in Python."""

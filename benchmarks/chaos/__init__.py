"""`python -m benchmarks.chaos`: reducers are struck while a model trains."""

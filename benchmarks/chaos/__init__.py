"""`python -m benchmarks.chaos`: reducers are killed or stopped while a model trains."""

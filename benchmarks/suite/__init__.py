"""The benchmarks that `make bench` runs."""

"""`python -m benchmarks.soak`: hours of all-reduces, to see whether memory grows."""

"""`python -m benchmarks.soak`: hours of all-reduces, and whether memory grows."""

"""Small benchmarks of single aspects, which take about a minute on one machine."""

"""Small benchmarks of one aspect each, which take about a minute on one machine."""

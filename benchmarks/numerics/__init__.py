"""Accuracy of sums, and convergence of training."""

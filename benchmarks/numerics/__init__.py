"""How exact sums are, and how training converges."""

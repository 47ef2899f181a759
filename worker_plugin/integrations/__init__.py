"""Small bridges to training libraries. Each needs its library only when it is imported."""

"""Small bridges to what people train with; each needs its library only when it is imported."""

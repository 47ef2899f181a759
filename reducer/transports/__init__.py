"""How connections reach the engine; one file per data plane."""

"""Server side of connections to the engine, one file per data plane."""

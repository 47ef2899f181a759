"""The demonstrations for newcomers: `make demo`, and as root `make demo-network`."""

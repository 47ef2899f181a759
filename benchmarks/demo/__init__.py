"""What a newcomer runs first: `make demo`, and as root `make demo-network`."""

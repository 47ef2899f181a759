"""The machines of a benchmark: rank and reducer processes, hosts and shaped links."""

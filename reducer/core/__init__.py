"""The reducer's decisions: events in, actions out. No sockets, clocks, threads, logs or arrays."""

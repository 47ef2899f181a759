"""What a reducer decides: events in, actions out. No sockets, clocks, threads, logs or arrays."""

"""What a reducer decides, without sockets, clocks, threads, logs or arrays: events in, actions out."""

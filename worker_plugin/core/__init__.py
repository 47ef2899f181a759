"""What a rank decides, without sockets, clocks, threads, logs or tensors: events in, actions out."""

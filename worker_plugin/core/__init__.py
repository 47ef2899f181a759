"""The decisions of a rank: events in, actions out; no sockets, clocks, threads or tensors."""

"""What a process has only once: its I/O loop, its logging, its duties at a fork and at its end."""

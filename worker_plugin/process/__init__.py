"""Everything that a process has only once: its I/O loop, its logging, and its duties at a fork and at its end."""

"""Once-per-process state: the I/O loop, logging, and duties at fork and at exit."""

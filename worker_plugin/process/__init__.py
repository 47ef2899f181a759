"""What a process has once: the I/O loop's thread, what forked children and the interpreter's end need."""

"""The size of chunks, the order in which they are pushed, and how far pushes run ahead."""

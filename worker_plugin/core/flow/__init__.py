"""How large a chunk is, in which order chunks are pushed, and how far pushes run ahead."""

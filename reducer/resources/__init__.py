"""What a reducer takes of its machine or container: cores, memory, and buffers that are used again."""

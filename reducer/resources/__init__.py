"""What a reducer uses of its machine or container: cores, memory and pooled buffers."""

"""A reducer's resources on its machine or container: cores, memory, ports and pooled buffers."""

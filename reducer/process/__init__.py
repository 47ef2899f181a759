"""The reducer's processes, from start to exit, and their supervisor."""

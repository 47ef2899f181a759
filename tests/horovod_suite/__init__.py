"""Horovod's own tests on our module with its API; see `__main__.py`."""

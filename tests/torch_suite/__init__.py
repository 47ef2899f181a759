"""Torch's own tests of process groups and DDP (distributed_test.py in its wheel), run on the backend "reduction".

    python -m tests.torch_suite                 the whole table, beside Gloo's; about five minutes
    python -m tests.torch_suite --quick         as torch runs them for a backend, without Gloo

See `__main__.py`.
"""

"""Other libraries' own tests of data-parallel training, run on our strategy or backend.

    python -m tests.library_suites accelerate
    python -m tests.library_suites torchft
    python -m tests.library_suites lightning SOURCE

See `__main__.py`.
"""

"""The faults' fixtures: a way to a reducer that can be cut, and processes that are stopped."""

from faults.conftest import detour, faulty_reducer, stopped  # noqa: F401

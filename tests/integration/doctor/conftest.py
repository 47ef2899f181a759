"""The faults' fixtures: a breakable path to a reducer, and processes that are stopped."""

from faults.conftest import detour, faulty_reducer, stopped  # noqa: F401

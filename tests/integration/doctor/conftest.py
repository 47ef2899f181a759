"""Fixtures of the fault tests: a detour to a reducer that can be cut, and stopped processes."""

from faults.conftest import detour, faulty_reducer, stopped  # noqa: F401

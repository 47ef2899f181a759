"""The number of a process group's collectives that went through the reducers."""

from __future__ import annotations

from typing import Any

from worker_plugin.process_group import state_of


def passed_through(group: Any) -> int:
    """Return how many collectives the state behind a group has issued."""
    communicator = state_of(group)._communicator
    return 0 if communicator is None else communicator._issued

"""Threads that wait for a milestone hear its first outcome."""

import pytest
from reduction.errors import ClosedError

from worker_plugin.discovery.milestone import Milestone


def test_the_first_outcome_counts():
    reached = Milestone()
    reached.reach()
    reached.fail(ClosedError("too late"))
    reached.wait()
    failed = Milestone()
    failed.fail(ClosedError("first"))
    failed.fail(ClosedError("second"))
    failed.reach()
    for _ in range(2):
        with pytest.raises(ClosedError, match="first"):
            failed.wait()

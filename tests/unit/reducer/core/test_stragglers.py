"""Statistics of who was last."""

import pytest
from reduction.model import LastRank, WaitTimes

from reducer.core.stragglers import LATEST, Stragglers


def test_before_the_first_chunk():
    assert Stragglers().last() == ()
    assert Stragglers().times() == WaitTimes()


def test_every_rank_that_was_last_is_counted_and_its_time_added_up():
    waits = Stragglers()
    for rank, waited_s in [(3, 0.5), (1, 0.25), (3, 2.0)]:
        waits.note(rank, waited_s)
    assert waits.last() == (LastRank(1, 1, 0.25), LastRank(3, 2, 2.5))


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, (0, 0, 0, 0)), (2, (0, 0, 0, 1)), (100, (49, 89, 98, 99)), (101, (50, 90, 99, 100))],
)
def test_percentiles_by_nearest_rank(count, expected):
    waits = Stragglers()
    for waited_s in reversed(range(count)):
        waits.note(0, float(waited_s))
    assert waits.times() == WaitTimes(*map(float, expected))


def test_percentiles_are_about_the_latest_chunks_only():
    waits = Stragglers()
    waits.note(0, 100.0)
    for _ in range(LATEST):
        waits.note(0, 1.0)
    assert waits.times().max_s == 1.0
    assert waits.last() == (LastRank(0, LATEST + 1, LATEST + 100.0),)

"""The rank that is reported as the straggler."""

import pytest
from reduction.timeline.stragglers import Straggler, straggler, waited_for


@pytest.mark.parametrize(
    ("counts", "waits", "world_size", "expected"),
    [
        ({0: 6, 3: 14}, {0: 0.1, 3: 1.4}, 4, Straggler(3, 0.7, pytest.approx(0.1))),
        ({0: 9, 3: 11}, {0: 0.1, 3: 1.4}, 4, None),  # nearly as often as another one
        ({0: 6, 1: 14}, {0: 0.1, 1: 1.4}, 2, None),  # with two ranks, one is always last
        ({0: 3, 3: 7}, {0: 0.1, 3: 1.4}, 4, None),  # too few
        ({3: 20}, {3: 0.001}, 4, None),  # no rank waits
        ({0: 20}, {0: 5.0}, 1, None),
    ],
)
def test_finding_a_straggler(counts, waits, world_size, expected):
    assert straggler(counts, waits, world_size) == expected


@pytest.mark.parametrize(
    ("counts", "waits", "expected"),
    [
        ({0: 9, 1: 11}, {0: 0.1, 1: 2.2}, Straggler(1, 0.55, pytest.approx(0.2))),
        ({0: 9, 1: 11}, {0: 1.0, 1: 2.2}, None),  # half as long for the other one
        ({0: 1, 1: 3}, {0: 0.1, 1: 2.2}, None),  # too few
        ({1: 20}, {1: 0.002}, None),  # hardly any
        ({1: 20}, {1: 0.0}, None),
    ],
)
def test_a_rank_that_is_waited_for_need_not_be_the_last_for_most_chunks(counts, waits, expected):
    assert waited_for(counts, waits) == expected

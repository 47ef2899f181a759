"""A reducer that ends with its job."""

import pytest

from reducer.process.unused import Unused


@pytest.mark.parametrize(
    ("limits", "looks", "over_at_s"),
    [
        # Looks are (whether it has ever had a job, how many it has, when). Before the first job it waits indefinitely.
        ((5.0,), [(False, 0, 0.0), (False, 0, 4.0), (False, 0, 1e6)], None),
        # The time starts at the end of the last job.
        ((5.0,), [(True, 1, 0.0), (True, 0, 10.0), (True, 0, 14.9), (True, 1, 15.0), (True, 0, 16.0)], 21.0),
        ((0.0,), [], 3.0),
        # A first job that never arrives, and one that arrives and ends between two looks.
        ((None, 5.0), [(False, 0, 1.0), (False, 0, 5.9)], 6.0),
        ((3.0, 5.0), [(False, 0, 0.0), (True, 0, 5.5), (True, 0, 8.4)], 8.5),
        # Without a limit after the job it keeps running.
        ((None, 5.0), [(True, 0, 0.0), (True, 0, 1e6)], None),
    ],
)
def test_it_ends_after_being_unused_for_too_long(limits, looks, over_at_s):
    unused = Unused(*limits)
    assert not any(unused.is_over(has_served=served, jobs=jobs, now_s=now) for served, jobs, now in looks)
    if over_at_s is not None:
        has_served = not looks or looks[-1][0]
        assert not looks or not unused.is_over(has_served=has_served, jobs=0, now_s=over_at_s - 0.1)
        assert unused.is_over(has_served=has_served, jobs=0, now_s=over_at_s)

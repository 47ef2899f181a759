"""The line of rank 0, and the one thing that it recommends checking."""

import pytest
from reduction.timeline.parts import Parts
from reduction.timeline.stragglers import Straggler

from worker_plugin.timeline.report import Report
from worker_plugin.timeline.stats import Shares


def report(*, ideal=4.0, straggler=None, is_shared=False, **parts):
    times = {"transfer": 4.0, **parts}
    ranks = times.get("ranks", {})
    measured = sum(value for name, value in times.items() if name != "ranks") + sum(ranks.values())
    shares = Shares(Parts(2, 6, 12_000_000, measured, **times), ideal, 0.001, 1e9)
    return Report("my job", 60.0, 3, 6, shares, 0.25, straggler, is_shared)


def test_the_report_line():
    one = report(copy=1.0, credit=0.2, ranks={None: 0.4}, copy_back=0.4)
    assert one.line() == (
        "report job=my_job seconds=60.0 steps=3 collectives=6 step_s=20.000000 round_s=3.000000 exposed_s=0.250000 "
        "ideal_s=2.000000 copy_s=0.500000 credit_s=0.100000 ranks_s=0.200000 transfer_s=0.000000 "
        "copy_back_s=0.200000 bytes=6000000 algbw=2000000 efficiency=0.667 look_at=copy "
        'cause="23 % of the time are copies between tensors and the memory that is sent: look for other work on '
        'these cores"'
    )


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({}, "nothing"),
        ({"copy": 0.5, "copy_back": 0.6, "credit": 1.0}, "copy"),
        ({"credit": 1.0, "copy": 0.5}, "gil"),
        ({"ranks": {None: 1.0}, "credit": 0.5}, "ranks"),
        ({"ideal": 2.0, "credit": 0.5}, "network"),
        ({"ideal": 2.0, "credit": 0.5, "is_shared": True}, "reducers"),
        ({"straggler": Straggler(3, 0.71, 0.5), "credit": 0.5}, "rank_3"),
        ({"straggler": Straggler(3, 0.71, 0.002), "credit": 0.5}, "gil"),
    ],
)
def test_the_cause_is_identified(parts, word):
    assert report(**parts).cause()[0] == word


def test_the_rank_that_was_last_is_named():
    assert report(straggler=Straggler(3, 0.71, 0.5)).cause()[1] == (
        "rank 3 was last for 71 % of the chunks, which waited 500.0 ms for it: look at its data loader and its link"
    )


def test_links_are_not_mentioned_if_all_streams_are_in_shared_memory():
    slow = report(ideal=2.0, is_shared=True).cause()[1]
    late = report(straggler=Straggler(3, 0.71, 0.5), is_shared=True).cause()[1]
    assert "shared memory" in slow
    assert late.endswith("look at its data loader and its cores")
    assert "link" not in slow + late

"""Conclusions that an elastic run draws from its workers' output lines."""

import math

import pytest

from benchmarks.elastic.course import check_bits, gap, next_step
from benchmarks.lab.ranks import RanksFailed


def lines(*steps, digest="same", begin=0.0):
    return [{"step": step, "digest": digest, "at": begin + step} for step in steps]


def test_workers_with_the_same_bits_pass():
    check_bits({"1": lines(1, 2, 3), "2": lines(2, 3)}, 1)


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ({"1": lines(1, 2), "2": lines(2, digest="other")}, r"differ after steps \[2\]"),
        ({"1": lines(1, 3)}, r"did steps \[1, 3\]"),
        ({"1": lines(1, 1)}, r"did steps \[1, 1\]"),
        ({"1": lines(1), "2": lines(3)}, r"nobody did steps \[2\]"),
        ({"1": lines(1, 2, 3), "2": lines(1, 2)}, r"started over, workers at steps \[1, 1\]"),
    ],
)
def test_inconsistent_runs_fail(workers, text):
    with pytest.raises(RanksFailed, match=text):
        check_bits(workers, 1)


def test_the_gap_ends_with_a_step_that_the_victim_cannot_have_joined():
    survivor = [{"step": step, "at": at} for step, at in [(1, 1.0), (2, 2.0), (3, 2.6), (4, 4.0)]]
    victim = [{"step": step, "at": step} for step in (1.0, 2.0)]
    # Step 3 was in progress at the kill, and ended soon after it.
    assert gap({"1": survivor, "2": victim}, 2.5, "2") == pytest.approx(1.5)
    assert gap({"1": survivor[:2], "2": victim}, 2.5, "2") == math.inf


def test_the_next_step_of_a_restarted_job():
    assert next_step(lines(1, 2, 5), 2.2) == pytest.approx(2.8)
    assert next_step(lines(1), 2.2) == math.inf

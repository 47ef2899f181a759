from __future__ import annotations

import itertools

import pytest

from benchmarks.chaos.__main__ import parse
from benchmarks.chaos.course import Course, Training
from benchmarks.chaos.load import HANG_S, Slice
from benchmarks.chaos.reducers import JITTER, Struck, schedule
from benchmarks.chaos.report import Felt, felt, figures, goodput, lines
from benchmarks.lab.ranks import RanksFailed
from benchmarks.method.table import tail


def training(*slices: list[Slice]) -> Training:
    made = Training()
    for one in slices:
        made.add(one)
    return made


def slice_of(digest: str, *steps: tuple[float, float]) -> Slice:
    return Slice([begun for begun, _ in steps], [done for _, done in steps], digest)


def steps(*times: tuple[float, float]) -> list[Slice]:
    """Two ranks, the second of which is always 0.01 s later."""
    late = [(begun + 0.01, done + 0.01) for begun, done in times]
    return [slice_of("abc", *times), slice_of("abc", *late)]


def course() -> Course:
    warmup = steps((0.0, 0.5))
    disturbed = training(warmup, steps((1.0, 1.1), (1.1, 2.0), (2.0, 2.1), (2.1, 2.2)))
    reference = training(warmup, steps((5.0, 5.1), (5.1, 5.2), (5.2, 5.3), (5.3, 5.4)))
    return Course(disturbed, reference, [Struck(1.15, 2, 1, True, 1.9), Struck(2.05, 0, 0, False, 2.08)], 2)


def test_a_seed_determines_the_schedule() -> None:
    first = schedule(7, 500, 2.0, 3)
    assert first == schedule(7, 500, 2.0, 3) != schedule(8, 500, 2.0, 3)
    assert {strike.reducer for strike in first} == {0, 1, 2}
    pauses = [later.at_s - strike.at_s for strike, later in itertools.pairwise(first)]
    assert 2.0 * JITTER[0] <= min(pauses) < max(pauses) <= 2.0 * JITTER[1]
    assert sum(pauses) / len(pauses) == pytest.approx(2.0, rel=0.05)


def test_a_step_of_the_job_ends_with_its_last_rank() -> None:
    made = course().disturbed
    assert made.steps == 4, "the warm-up does not count"
    assert made.done_s == pytest.approx([0.51, 1.11, 2.01, 2.11, 2.21])
    assert made.seconds == pytest.approx(1.21)


def test_ranks_with_different_weights_are_named() -> None:
    with pytest.raises(RanksFailed, match="after step 1 the weights differ: rank 0 abc, rank 1 xyz"):
        training([slice_of("abc", (0.0, 0.1)), slice_of("xyz", (0.0, 0.1))])


def test_a_step_that_takes_too_long_is_a_hang_although_it_ended() -> None:
    training(steps((0.0, HANG_S - 1)))
    with pytest.raises(RanksFailed, match=r"step 1 took 61\.0 s; more than 60 s is a hang"):
        training(steps((0.0, 0.1)), [slice_of("abc", (1.0, 62.0))] * 2)


def test_a_strikes_delay_is_measured_to_the_next_and_the_first_whole_step() -> None:
    first, second = felt(course())
    assert first == pytest.approx(Felt(0.0, 2, 1, True, 0.86, 0.96, 0.75))
    assert second == pytest.approx(Felt(0.9, 0, 0, False, 0.06, 0.16, 0.03))


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (1, 1, 1)), (2, (1, 2, 2)), (20, (10, 19, 20)), (200, (100, 190, 200))]
)
def test_median_p95_and_maximum_are_observed_values(count: int, expected: tuple[int, ...]) -> None:
    assert tail([float(value) for value in range(count, 0, -1)]) == expected


def test_goodput_is_relative_to_the_undisturbed_speed() -> None:
    assert goodput(course()) == pytest.approx(0.41 / 1.21)


def test_the_printed_and_written_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["chaos", "--workers=2", "--seed=7", "--colocated"])
    text = "\n".join(lines(parse(), course()))
    for part in (
        "2 x SIGKILL",
        "n=2, k=3",
        "seed 7",
        "goodput 33.9%",
        "abc",
        "while others served",
        "ranks' hosts",
    ):
        assert part in text
    written = figures(course())
    assert written["strikes"][1]["reducer"] == 0
    assert written["next_step_s"]["maximum"] == pytest.approx(0.86)

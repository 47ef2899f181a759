"""Runs that chose the same job name: no sum mixes two runs, whichever ranks join, die or are left over.

Each case is also shown to fail when reducers treat all ranks as one run.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from model_check.clusters import Clusters
from model_check.explorer import Report, Violation, explore
from model_check.state import State_
from model_check.world import freeze
from reduction.model import Configuration, Hello, Join, Member

from reducer.core import actions as ra
from reducer.core import events as re
from reducer.core.jobs import Jobs
from reducer.core.totals import JobTotals, Totals
from reducer.core.waits import Waits

#: Two runs of two ranks; one run and a rank 1, or a rank 0, left over from the day before.
TWO, LEFT_1, LEFT_0 = [(0, 1), (0, 1)], [(0, 1), (1,)], [(0, 1), (0,)]
BOTH, NEITHER = frozenset({0, 1}), frozenset[int]()


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide from reducers which run a Join belongs to."""
    on_join = Jobs._on_join
    monkeypatch.setattr(
        Jobs, "_on_join", lambda self, stream, join: on_join(self, stream, dataclasses.replace(join, run=""))
    )


# ---- both sides ----


def visit(world: Clusters, states_max: int = 10**9, **faults: int) -> tuple[Report, set[frozenset[int]]]:
    """Visit everything; return the report and the sets of runs that got their sums at an end."""
    ends: set[frozenset[int]] = set()

    def is_goal(state: State_) -> bool:
        is_end = world.is_goal(state)
        if is_end:
            ends.add(frozenset(world.succeeded(state)))
        return is_end

    start = world.start(**faults)
    report = explore(start, world.successors, is_goal, states_max=states_max, seconds_max=1200)
    print(f"{report.states} states, {report.seconds:.0f} s")
    return report, ends


def check(world: Clusters, states_max: int = 10**9, **faults: int) -> set[frozenset[int]]:
    report, ends = visit(world, states_max, **faults)
    assert report.violation is None, "\n".join((report.violation[0], *report.violation[1]))
    assert report.stuck is None, "\n".join(("nobody can go on after", *report.stuck[1]))
    assert report.is_complete or report.states >= states_max, "ran out of time"
    return ends


@pytest.mark.parametrize("runs", [LEFT_1, LEFT_0], ids=["rank 1", "rank 0"])
def test_a_rank_is_left_over_from_an_earlier_run(runs: list[tuple[int, ...]]) -> None:
    assert check(Clusters(runs, 2)) == {frozenset({0}), NEITHER}


@pytest.mark.parametrize("mortal", [0, 1, 2])
@pytest.mark.full
def test_a_rank_is_left_over_and_one_dies(mortal: int) -> None:
    check(Clusters(LEFT_1, 2, mortal=mortal), deaths=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_two_runs_of_two_ranks() -> None:
    """Both runs may get their sums, one after the other."""
    assert check(Clusters(TWO, 2)) == {BOTH, frozenset({0}), frozenset({1}), NEITHER}


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_rank_is_left_over_at_two_reducers() -> None:
    check(Clusters(LEFT_1, 2, reducers=2), 300_000)


@pytest.mark.parametrize("runs", [LEFT_1, LEFT_0, pytest.param(TWO, marks=pytest.mark.full)])
def test_ranks_of_one_name_mix_if_runs_are_not_told_apart(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, ...]]
) -> None:
    blind(monkeypatch)
    report, _ = visit(Clusters(runs, 2))
    assert report.violation is not None
    assert "wrong sum" in report.violation[0]


# ---- a reducer alone, with ranks that do anything at any moment ----

#: Run, rank and life of each process.
Process = tuple[int, int, int]
#: Number of the reducer's core, and the processes that have a stream.
State = tuple[int, frozenset[int]]


class Desk:
    """A reducer that sees processes join, send Hello and disconnect in any order."""

    def __init__(self, processes: list[Process], size: int) -> None:
        self._processes, self._size = processes, size
        self._cores = [Jobs(incarnation=bytes(16), memory_limit_bytes=1 << 40)]
        self._numbers = {freeze(self._cores[0]): 0}

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        core, here = state
        for number, (run, rank, life) in enumerate(self._processes):
            name = f"rank {rank} of run {run}"
            instance = bytes([run, life]) * 8
            if number not in here:
                nonce = bytes([run, rank, life, 0]) * 4
                known = b"" if rank else instance
                join = Join("job", known, rank, self._size, nonce, f"host{number}", 0, 4096, run=f"run {run}")
                yield f"{name} joins", self._after(core, here | {number}, re.Received(number, join))
                continue
            yield f"{name} is lost", self._after(core, here - {number}, re.Lost(number))
            job, _ = self._cores[core].streams[number]
            if rank not in job.hellos:
                hello = Hello(Configuration(instance, 1, 1024, (Member("a:1", bytes(16)),)), 0)
                yield f"{name} greets", self._after(core, here, re.Received(number, hello))

    def _after(self, core: int, here: frozenset[int], event: Any) -> State:
        jobs = copy.deepcopy(self._cores[core])
        closed = {action.stream for action in jobs.handle(event, 0.0) if isinstance(action, ra.Close)}
        jobs.totals = Totals()
        jobs.failures.clear()  # they only cause more refusals
        for job in jobs.by_name.values():
            present = [view for view in job.ranks.values() if view.stream is not None]
            greeted = [job.ranks[rank] for rank in job.hellos]
            if len(runs := {view.nonce[0] for view in (*present, *greeted)}) > 1:
                raise Violation(f"ranks of runs {runs} are in one job")
            job.totals = JobTotals()
            job.waits = Waits(job.totals)
            for view in job.ranks.values():
                view.streams = 1
        number = self._numbers.setdefault(freeze(jobs), len(self._cores))
        if number == len(self._cores):
            self._cores.append(jobs)
        return number, here - closed

    def has_begun(self, state: State) -> bool:
        """Return whether the job has started, with all ranks of a run."""
        return any(job.is_started for job in self._cores[state[0]].by_name.values())


def at_a_desk(processes: list[Process], size: int) -> Report:
    desk = Desk(processes, size)
    start: State = 0, frozenset()
    report = explore(start, desk.successors, desk.has_begun, states_max=10**9, seconds_max=1200)
    print(f"{report.states} states, {report.seconds:.0f} s")
    return report


def runs_of(size: int) -> list[Process]:
    return [(run, rank, 0) for run in range(2) for rank in range(size)]


@pytest.mark.parametrize(
    ("processes", "size"),
    [
        (runs_of(2), 2),
        ([(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1)], 2),
        (runs_of(3), 3),
    ],
    ids=["2 ranks", "a rank 0 that is started again", "3 ranks"],
)
def test_a_job_has_ranks_of_one_run(processes: list[Process], size: int) -> None:
    report = at_a_desk(processes, size)
    assert report.violation is None, "\n".join((report.violation[0], *report.violation[1]))
    assert report.stuck is None, "\n".join(("no run can begin any more after", *report.stuck[1]))
    assert report.is_complete, "ran out of time"


@pytest.mark.parametrize("size", [2, 3])
def test_a_job_mixes_two_runs_if_they_are_not_told_apart(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    blind(monkeypatch)
    assert at_a_desk(runs_of(size), size).violation is not None

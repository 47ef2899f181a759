"""The two trainings of `benchmarks.chaos`: one whose reducers are struck, and one that is undisturbed.

Both follow the same slices: the parent says how many steps come next, so all ranks agree when to stop. Between two
slices all ranks are idle for a moment, in both trainings alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from benchmarks.chaos.load import HANG_S, ChaosTraining, Slice
from benchmarks.chaos.reducers import ChaosReducers, Struck
from benchmarks.chaos.schedule import schedule
from benchmarks.lab.ranks import Ranks, RanksFailed
from benchmarks.method.slices import following

#: Steps before anything is struck or timed: connections, DDP's own second set of buckets, the choice of the grid.
WARMUP_STEPS = 20
#: Length of a slice, in seconds.
SLICE_S = 2.0
#: Steps after the last reducer is back.
SETTLE_STEPS = 20


class ChaosFailed(Exception):
    """A promise was broken; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line says."""

    strikes: int
    every_s: float
    signal: str
    workers: int
    reducers: int
    transport: str
    restart_after_s: float
    stop_for_s: float
    seed: int


@dataclass(slots=True)
class Training:
    """What all ranks did together, slice by slice. A step of the job begins with its first rank, ends with its last."""

    counts: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    begun_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    #: Without the warm-up, and without the pauses between slices.
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Those that are timed."""
        return sum(self.counts[1:])

    def add(self, slices: list[Slice]) -> None:
        """Take what the ranks did in a slice.

        Raises:
            ChaosFailed: the ranks have different weights, or a step was a hang.
        """
        done = sum(self.counts)
        if len({one.digest for one in slices}) != 1:
            digests = ", ".join(f"rank {rank} {one.digest[:16]}" for rank, one in enumerate(slices))
            raise ChaosFailed(f"after step {done + len(slices[0].done_s)} the weights differ: {digests}")
        begun_s = [min(times) for times in zip(*(one.begun_s for one in slices), strict=True)]
        done_s = [max(times) for times in zip(*(one.done_s for one in slices), strict=True)]
        for number, (begun, end) in enumerate(zip(begun_s, done_s, strict=True), done):
            if end - begun > HANG_S:
                raise ChaosFailed(f"step {number} took {end - begun:.1f} s; more than {HANG_S:g} s is a hang")
        if self.counts:
            self.seconds += done_s[-1] - begun_s[0]
        self.counts.append(len(done_s))
        self.digests.append(slices[0].digest)
        self.begun_s += begun_s
        self.done_s += done_s


@dataclass(slots=True)
class Course:
    """The whole of it."""

    disturbed: Training = field(default_factory=Training)
    reference: Training = field(default_factory=Training)
    struck: list[Struck] = field(default_factory=list)
    restarts: int = 0


def run(settings: Settings, say: Callable[[str], None]) -> Course:
    """Train twice, and compare.

    Raises:
        ChaosFailed: ranks or trainings ended with different weights, or a step was a hang.
        RanksFailed: a rank raised, or did not answer.
        ReducersFailed: a reducer ended, and no strike was the reason.
    """
    course = Course()
    reducers = ChaosReducers(
        settings.reducers,
        settings.signal,
        restart_after_s=settings.restart_after_s,
        stop_for_s=settings.stop_for_s,
    )
    with closing(reducers):
        reducers.start()
        with closing(Ranks(settings.workers, reducers.addresses)) as ranks:
            ranks.load(ChaosTraining, settings.seed)
            try:
                _disturb(settings, course, reducers, ranks)
            except RanksFailed:
                reducers.check()  # a better reason, if there is one
                raise
            finally:
                course.struck, course.restarts = list(reducers.struck), reducers.restarts
            say(f"{len(course.struck)} strikes in {sum(course.disturbed.counts)} steps; now undisturbed")
            _repeat(settings, course, reducers, ranks)
    return course


def _disturb(settings: Settings, course: Course, reducers: ChaosReducers, ranks: Ranks) -> None:
    training = course.disturbed
    ranks.call("begin", reducers.addresses, settings.transport, "chaos-disturbed")
    training.add(ranks.call("run", WARMUP_STEPS))
    reducers.strike(schedule(settings.seed, settings.strikes, settings.every_s, settings.reducers))
    count = WARMUP_STEPS
    while not reducers.is_over:
        before = training.seconds
        training.add(ranks.call("run", count))
        reducers.check()
        count = following(count, training.seconds - before, SLICE_S)
    training.add(ranks.call("run", SETTLE_STEPS))


def _repeat(settings: Settings, course: Course, reducers: ChaosReducers, ranks: Ranks) -> None:
    training = course.reference
    ranks.call("begin", reducers.addresses, settings.transport, "chaos-reference")
    for count, expected in zip(course.disturbed.counts, course.disturbed.digests, strict=True):
        training.add(ranks.call("run", count))
        if training.digests[-1] != expected:
            raise ChaosFailed(
                f"after step {sum(training.counts)} the disturbed training had weights {expected[:16]}, "
                f"the undisturbed one {training.digests[-1][:16]}"
            )
    ranks.call("end")
    reducers.check()

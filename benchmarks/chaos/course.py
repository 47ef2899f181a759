"""The two trainings of the chaos tool: one whose reducers get signals, and one of as many steps without signals.

Both have the same slices. The parent sets the number of steps of each slice, so all ranks agree
when to stop. In both trainings all ranks are idle for a moment between two slices.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.load import HANG_S, ChaosTraining, Slice
from benchmarks.chaos.reducers import ChaosReducers, Struck, schedule
from benchmarks.lab.hosts import Host
from benchmarks.lab.network import Network
from benchmarks.lab.ranks import Ranks, RanksFailed
from benchmarks.lab.traffic import Link
from benchmarks.method.history import merge
from benchmarks.method.slices import following

#: The link of each host with --colocated. It is fast, so that the processor is the bottleneck.
LINK = Link(rate_mbit=2000)
#: Number of first steps without signals. They are not timed, because connections are made, DDP makes
#: its second set of buckets, and the chunk size settles.
WARMUP_STEPS = 20
#: Length of a slice, in seconds.
SLICE_S = 2.0
#: Job of the disturbed training.
JOB = "chaos-disturbed"
#: Number of steps after the last reducer is serving again.
SETTLE_STEPS = 20


@dataclass(slots=True)
class Training:
    """The steps of a training. A step begins when its first rank begins, and ends when its last rank ends."""

    counts: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    begun_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    #: The time of all steps after the warm-up, without the pauses between slices.
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """The number of timed steps."""
        return sum(self.counts[1:])

    def add(self, slices: list[Slice]) -> None:
        """Add a slice, as reported by each rank.

        Raises:
            RanksFailed: the ranks have different weights, or a step hung.
        """
        done = sum(self.counts)
        if len({part.digest for part in slices}) != 1:
            digests = ", ".join(f"rank {rank} {part.digest[:16]}" for rank, part in enumerate(slices))
            raise RanksFailed(f"after step {done + len(slices[0].done_s)} the weights differ: {digests}")
        begun_s = [min(times) for times in zip(*(part.begun_s for part in slices), strict=True)]
        done_s = [max(times) for times in zip(*(part.done_s for part in slices), strict=True)]
        for number, (begun, end) in enumerate(zip(begun_s, done_s, strict=True), done):
            if end - begun > HANG_S:
                raise RanksFailed(f"step {number} took {end - begun:.1f} s; more than {HANG_S:g} s is a hang")
        if self.counts:
            self.seconds += done_s[-1] - begun_s[0]
        self.counts.append(len(done_s))
        self.digests.append(slices[0].digest)
        self.begun_s += begun_s
        self.done_s += done_s


@dataclass(slots=True)
class Course:
    """Both trainings, and the signals that were sent."""

    disturbed: Training = field(default_factory=Training)
    reference: Training = field(default_factory=Training)
    struck: list[Struck] = field(default_factory=list)
    restarts: int = 0


def run(settings: Namespace, course: Course, say: Callable[[str], None]) -> None:
    """Train with and without signals, and compare the weights. The results are stored in `course`.

    With a history every step reduces some additional tensors, and the file records every rank's inputs and results.

    Raises:
        RanksFailed: ranks or trainings ended with different weights, a step hung, or a rank or a reducer failed.
        NetworkUnavailable: this machine cannot have hosts of its own.
    """
    history: Path | None = settings.history
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers_at: list[Host] = []
        reducers_at: list[Host] = []
        if settings.colocated:
            network = stack.enter_context(Network(settings.workers, settings.reducers, LINK))
            workers_at, reducers_at = network.workers, network.reducers
        reducers = ChaosReducers(
            settings.reducers,
            settings.signal,
            restart_after_s=settings.restart_after_s,
            stop_for_s=settings.stop_for_s,
            hosts=reducers_at,
        )
        stack.enter_context(closing(reducers))
        reducers.start()
        if history is not None:
            stack.callback(
                lambda: merge(history, folder.glob(f"{JOB}-*"), _others(settings, reducers.struck))
            )
        ranks = stack.enter_context(closing(Ranks(settings.workers, reducers.addresses, hosts=workers_at)))
        ranks.load(ChaosTraining, settings.seed, folder if history is not None else None)
        try:
            _disturb(settings, course, reducers, ranks)
        except RanksFailed:
            reducers.check()  # if a reducer failed, that is the root cause
            raise
        finally:
            course.struck, course.restarts = list(reducers.struck), reducers.restarts
        say(f"{len(course.struck)} strikes in {sum(course.disturbed.counts)} steps; now undisturbed")
        _repeat(settings, course, reducers, ranks)


def _others(settings: Namespace, struck: list[Struck]) -> list[dict[str, Any]]:
    life = {"what": "life", "t": 0.0, "job": JOB, "life": 1, "ranks": settings.workers}
    life |= {"local_size": 1, "on_reducer_loss": "reshard"}
    return [life] + [
        {
            "what": "fault",
            "t": strike.at_s,
            "kind": f"{settings.signal} reducer",
            "hosts": [strike.reducer],
            "seconds": strike.back_s - strike.at_s,
        }
        for strike in struck
    ]


def _disturb(settings: Namespace, course: Course, reducers: ChaosReducers, ranks: Ranks) -> None:
    training = course.disturbed
    _begin(settings, reducers, ranks, JOB)
    training.add(ranks.call("run", WARMUP_STEPS))
    leaders = ranks.pids if settings.colocated else []
    count = settings.reducers + len(leaders)
    reducers.strike(schedule(settings.seed, settings.strikes, settings.every_s, count), leaders)
    count = WARMUP_STEPS
    while not reducers.is_over:
        before = training.seconds
        training.add(ranks.call("run", count))
        reducers.check()
        count = following(count, training.seconds - before, SLICE_S)
    training.add(ranks.call("run", SETTLE_STEPS))


def _begin(settings: Namespace, reducers: ChaosReducers, ranks: Ranks, job: str) -> None:
    colocated = "always" if settings.colocated else None
    ranks.call("begin", reducers.addresses, settings.transport, colocated, job)


def _repeat(settings: Namespace, course: Course, reducers: ChaosReducers, ranks: Ranks) -> None:
    training = course.reference
    _begin(settings, reducers, ranks, "chaos-reference")
    for count, expected in zip(course.disturbed.counts, course.disturbed.digests, strict=True):
        training.add(ranks.call("run", count))
        if training.digests[-1] != expected:
            raise RanksFailed(
                f"after step {sum(training.counts)} the disturbed training had weights {expected[:16]}, "
                f"the undisturbed one {training.digests[-1][:16]}"
            )
    ranks.call("end")
    reducers.check()

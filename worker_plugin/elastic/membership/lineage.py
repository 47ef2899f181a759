"""Which generation of workers may follow which: what makes it impossible that two halves of a job both go on.

An elastic job is a sequence of **generations**: lists of workers that reduce together, each a job of
its own for the reducers. A generation *starts* when all of its workers have joined it. A worker is
in one generation at a time, and never goes back to one with a lower number.

The rule. A worker joins a generation only if it has a **majority** of the last generation that this
worker knows to have started, and of every generation that it has joined since. Half of them are a
majority if the first one, the one with the lowest rank, is among them. A newcomer joins its first
generation as if it had been in the one before. Workers that are known to have
ended, and to have joined nothing since a generation, do not count in it (memory.py). The first
generation of a job has all workers of the job's size instead.

Why it suffices. Let G and H have started, and let each be the one that all of its workers are in at
this moment. Both hold a majority of their last common ancestor, so some worker of that has joined
both, first one of them, say G. It took H only because H holds a majority of G as well. So a worker
of G is in H, and not in G any more: a contradiction. tests/model_check/test_generations.py visits
all interleavings of small cases, with the real code of this module.

That some do not count changes nothing: they have joined neither G nor H, and half of those who count
for one, or more, is more than half of those who count for both, if these are fewer. Where they are as
many, both are counted alike. That a worker has ended is not enough: before it did, it may have joined
a generation with workers that go on.

Besides, all but the newcomers of a generation must have been in those that this worker knows: one
that was left out of a generation that has started lacks what the others have done in it.

It is enough to look at the last generation that has started, and not at all earlier ones, only
because a generation starts when *all* of its workers have joined it. And a generation that a
worker has joined counts although it may never start, because the worker cannot know whether it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One process that takes part."""

    #: Its number in the job. A process that replaces another one has the same.
    rank: int
    #: Random; tells it from processes that had the same rank before.
    nonce: str


@dataclass(frozen=True, slots=True)
class Generation:
    """Workers that reduce together."""

    #: Rises from generation to generation, from 1. Several that were proposed may have the same.
    number: int
    #: Random; tells apart proposals with the same number.
    id: str
    #: In ascending order of their ranks.
    workers: tuple[Worker, ...]
    #: Those of them that come newly to a job that has begun, and get its state before they join.
    newcomers: tuple[Worker, ...] = ()

    @property
    def donor(self) -> Worker:
        """The worker that gives newcomers the state."""
        return next(worker for worker in self.workers if worker not in self.newcomers)

    def is_majority_of(self, before: Generation, ended: Mapping[Worker, int]) -> bool:
        """Whether this one has enough workers of an earlier one to speak for it; see `Lineage.ended`."""
        counting = before.workers
        if ended:
            counting = tuple(one for one in counting if ended.get(one, before.number + 1) > before.number)
        staying = set(self.workers).intersection(counting)
        if 2 * len(staying) == len(counting):
            return bool(staying) and counting[0] in staying
        return 2 * len(staying) > len(counting)


class Lineage:
    """What one worker remembers of the generations of its job. Pure; for one thread at a time.

    Args:
        own: this worker.
        size: how many workers the first generation has: ranks 0 to `size - 1`.
    """

    def __init__(self, own: Worker, size: int) -> None:
        self.own = own
        self.size = size
        #: The last generation that has started with this worker in it.
        self.started: Generation | None = None
        #: Those that this worker has joined since then, and of which it does not know whether they
        #: have started.
        self.joined: tuple[Generation, ...] = ()
        #: Workers that are known to have ended, each with the highest number of a generation that it has joined.
        self.ended: dict[Worker, int] = {}

    @property
    def last(self) -> Generation | None:
        """The generation that this worker has joined last, which has the highest number; None if it has joined none."""
        return self.joined[-1] if self.joined else self.started

    @property
    def number(self) -> int:
        """That generation's number; 0 if there is none."""
        return 0 if self.last is None else self.last.number

    def may_join(self, generation: Generation) -> bool:
        """Whether this worker may join a generation without risking that two of them go on."""
        if self.own not in generation.workers or generation.number <= self.number:
            return False
        if self.started is None and generation.number == 1:
            return [worker.rank for worker in generation.workers] == list(range(self.size))
        before = self.joined if self.started is None else (self.started, *self.joined)
        known = {worker for one in before for worker in one.workers}
        if before and not known.union(generation.newcomers).issuperset(generation.workers):
            return False
        return all(generation.is_majority_of(one, self.ended) for one in before)

    def inherit(self, before: Generation) -> None:
        """Record, as a newcomer, which generation has started before the one that takes it in.

        That counts for it as for the others: there may be so many newcomers that they are a majority of a
        generation which none of the others has joined.
        """
        self.joined = (before,)

    def join(self, generation: Generation) -> None:
        """Record that this worker joins a generation, which it may do."""
        self.joined = (*self.joined, generation)

    def start(self, generation: Generation) -> None:
        """Record that all workers of the generation that was joined last have joined it."""
        self.started, self.joined = generation, ()

"""Which generation may follow which: the rule that keeps two halves of a job from both continuing.

An elastic job is a sequence of **generations**: lists of workers that reduce together. For the reducers
each is a job of its own. A generation *starts* when all of its workers have joined it. A worker is in one
generation at a time, and never goes back to one with a lower number.

The rule: a worker joins a generation only if it has a **majority** of the last generation that this
worker knows to have started, and of every generation that it has joined since. Half of the workers are a
majority if they include the first one, which has the lowest rank. A newcomer joins its first generation
as if it had been in the previous one. Workers that are known to have ended, and to have joined nothing
since a generation, do not count in it (predecessor.py). The first generation of a job must instead have all
workers of the job's size.

Why this suffices: let G and H have started, and let each be the current generation of all of its workers.
Both hold a majority of their last common ancestor, so some worker of that ancestor has joined both, say
first G. It joined H only because H holds a majority of G as well. So some worker of G is in H and no
longer in G, which is a contradiction. tests/model_check/test_generations.py visits all interleavings of
small cases with the real code of this module.

The exclusions change nothing, because excluded workers have joined neither G nor H. Half or more of the
workers that count for one of the two is more than half of those that count for both, if the latter are fewer.
If they are not fewer, G and H are counted alike. It is not enough that a worker has ended: before it did, it
may have joined a generation with workers that continue.

In addition, all workers of a generation except its newcomers must have been in the generations that this
worker knows. A worker that was left out of a generation that started lacks what the others have done in it.

It is enough to look at the last generation that started, rather than at all earlier ones, only because a
generation starts when *all* of its workers have joined it. A generation that a worker has joined counts
even though it may never start, because the worker cannot know whether it has started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One process of the job."""

    #: Its number in the job. A process that replaces another one has the same number.
    rank: int
    #: Random; distinguishes it from earlier processes with the same rank.
    nonce: str


@dataclass(frozen=True, slots=True)
class Generation:
    """Workers that reduce together."""

    #: Increases from generation to generation, starting at 1. Several proposals may have the same number.
    number: int
    #: Random; distinguishes proposals with the same number.
    id: str
    #: In ascending order of their ranks.
    workers: tuple[Worker, ...]
    #: Workers that are new to a running job and get its state before they join.
    newcomers: tuple[Worker, ...] = ()

    @property
    def donor(self) -> Worker:
        """The worker that gives newcomers the state."""
        return next(worker for worker in self.workers if worker not in self.newcomers)

    def is_majority_of(self, before: Generation, ended: Mapping[Worker, int]) -> bool:
        """Return whether this generation has enough workers of an earlier one to act for it; see `Lineage.ended`."""
        counting = before.workers
        if ended:
            counting = tuple(one for one in counting if ended.get(one, before.number + 1) > before.number)
        staying = set(self.workers).intersection(counting)
        if 2 * len(staying) == len(counting):
            return bool(staying) and counting[0] in staying
        return 2 * len(staying) > len(counting)


class Lineage:
    """One worker's record of the generations of its job. Pure; for one thread at a time.

    Args:
        own: this worker.
        size: number of workers in the first generation: ranks 0 to `size - 1`.
    """

    def __init__(self, own: Worker, size: int) -> None:
        self.own = own
        self.size = size
        #: The last generation with this worker in it that started.
        self.started: Generation | None = None
        #: Generations that this worker has joined since, without knowing whether they have started.
        self.joined: tuple[Generation, ...] = ()
        #: Workers known to have ended, each with the highest number of a generation that it joined.
        self.ended: dict[Worker, int] = {}

    @property
    def last(self) -> Generation | None:
        """The generation that this worker joined last, which has the highest number; None if there is none."""
        return self.joined[-1] if self.joined else self.started

    @property
    def number(self) -> int:
        """That generation's number; 0 if there is none."""
        return 0 if self.last is None else self.last.number

    def may_join(self, generation: Generation) -> bool:
        """Return whether this worker can join a generation without risking that two of them continue."""
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
        """Record, as a newcomer, which generation started before the one that takes it in.

        It counts for the newcomer as it does for the others. Otherwise newcomers could be a majority of a
        generation that none of the others has joined.
        """
        self.joined = (before,)

    def join(self, generation: Generation) -> None:
        """Record that this worker joins a generation, as `may_join` allows."""
        self.joined = (*self.joined, generation)

    def start(self, generation: Generation) -> None:
        """Record that all workers of the generation joined last have now joined it."""
        self.started, self.joined = generation, ()

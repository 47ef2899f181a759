"""How workers agree on their next generation: a pure function of what one of them has heard.

    this worker   what it hears                                        what follows
    any           a proposal of its own run that names it, and that    Join: the one with the highest number
                  it may join, not as a newcomer, which must get the
                  training first
    new           no worker has a generation; ranks 0 to size - 1 are  Propose the first one, if it is rank 0
                  present, and a reducer has been heard for HEARD_S
                  some have one                                        wait until they take it in, however long that
                                                                       takes (donation.py); by then they know whether
                                                                       its predecessor has ended (predecessor.py)
                  nothing is heard of them any more, not even that     wait, at most `join_timeout_s`: perhaps no
                  they have left                                       reducer could be reached
                  all that have one leave while it takes the training  WorkersMissing
                  another living process has its rank                  RankTaken, after TAKEN_S
                  the others have other settings, or another run, or   ConfigError
                  one of them cannot give it the training
    a newcomer    the generation that takes it in has not started      WorkerLost
    has lost its  some worker of it is neither waiting nor gone        wait, at most STOPPED_S
    generation    all of its workers are waiting or gone, and this     Propose those that are waiting, if it
                  one has the lowest rank of those that wait           may join that; else wait for more to come
                                                                       back, or to prove that others have ended
                  nothing for `join_timeout_s`                         WorkersMissing
                  the others have continued without it, for STOPPED_S  WorkerLost

Proposals need not be wise, and workers may hear different things. `Lineage` decides what they may join, so
the worst that can happen is that a bad proposal comes to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from reduction.errors import (
    ConfigError,
    RankTaken,
    ReducerUnavailable,
    ReductionError,
    WorkerLost,
    WorkersMissing,
)

from worker_plugin.elastic.membership.entries import Said
from worker_plugin.elastic.membership.lineage import Generation, Lineage, Worker

#: How long to wait for a worker that has neither left nor reports that it waits, in seconds. This is longer than it
#: takes to notice a silent host, and longer than a process is likely to be suspended.
STOPPED_S = 15.0
#: How long it may take to notice that a process with the rank of a new one is gone, in seconds. It may have run on a
#: host that is silent now.
TAKEN_S = 15.0
#: How long a worker listens before it begins a job, in seconds. A reducer that has just started lists the workers it
#: knows before the others have redialled it, which takes them REDIAL_S of transports/lobby_client.py.
HEARD_S = 1.0


@dataclass(frozen=True, slots=True)
class Hearing:
    """What one worker knows at `now`; times in seconds on one monotonic clock."""

    now: float
    own: Said
    #: The last statement of every other worker, by nonce, including those that are gone.
    others: Mapping[str, Said]
    lineage: Lineage
    #: Since when this worker has been looking for a generation.
    since: float
    #: How long the search may take.
    join_timeout_s: float
    #: Random id for a proposal of this worker.
    new_id: str
    #: Since when reducers have reported without interruption which workers are present; None: none does.
    heard_since: float | None
    #: Whether this worker has begun to take the training of others.
    has_taken: bool = False
    #: Since when a new worker has heard neither that the job's workers it knew are alive, nor that they are gone. None:
    #: it hears of all of them, or never knew of any.
    silent_since: float | None = None

    @property
    def living(self) -> tuple[Said, ...]:
        """The other workers that are not gone."""
        return tuple(said for said in self.others.values() if not said.is_gone)


@dataclass(frozen=True, slots=True)
class Wait:
    """Deliberate again when another worker says something, or after a while."""

    #: What it waits for, for the log.
    why: str


@dataclass(frozen=True, slots=True)
class Propose:
    """Announce this proposal, and join it."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Join:
    """Join this generation."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Refuse:
    """This worker cannot take part."""

    error: ReductionError


Advice: TypeAlias = Wait | Propose | Join | Refuse


def deliberate(hearing: Hearing) -> Advice:
    """Return what a worker without a generation should do. This is a pure function."""
    if hearing.lineage.number == 0 and not any(said.number for said in hearing.living):
        silent_since = hearing.silent_since
        if silent_since is not None and hearing.now < silent_since + hearing.join_timeout_s:
            return Wait("the job's workers, none of which can be heard any more")
        if hearing.has_taken:
            # Its model is in no state from which a new job could begin.
            return Refuse(
                WorkersMissing(
                    f"all workers of the job disappeared while rank {hearing.own.worker.rank} took their training "
                    f"state: restart it"
                )
            )
    own, settings = hearing.own.worker, hearing.own.settings
    proposals = [
        one.proposal for one in hearing.living if one.proposal is not None and one.settings == settings
    ]
    allowed = [one for one in proposals if own not in one.newcomers and hearing.lineage.may_join(one)]
    if allowed:
        return Join(max(allowed, key=lambda one: (one.number, one.id)))
    return _as_new(hearing) if hearing.lineage.number == 0 else _after_a_loss(hearing)


def must_tell(generation: Generation, own: Worker, others: Iterable[Said]) -> bool:
    """Return whether a worker that joins a generation must announce which workers are in it.

    Some worker may be looking for a generation and not know this one. Only the first worker that has joined announces
    it. If each did, the total size of the lists would grow with the cube of the number of workers.
    """
    living = [said for said in others if not said.is_gone and said.worker != own]
    workers = frozenset(generation.workers)
    is_first = not any(
        said.generation == generation.id and said.worker < own for said in living if said.worker in workers
    )
    return is_first and any(
        said.number < generation.number and (said.is_waiting or not said.number)
        for said in living
        if said.worker in workers.difference(generation.newcomers)
    )


def _as_new(hearing: Hearing) -> Advice:
    own = hearing.own
    live = [said for said in hearing.living if said.number]
    for said in live or hearing.living:
        if said.settings != own.settings:
            return Refuse(
                ConfigError(
                    f"rank {own.worker.rank} has {own.settings}, rank {said.worker.rank} ({said.host}) of the job "
                    f"has {said.settings}: use the same on all workers"
                )
            )
    for said in live:
        if own.worker.nonce in said.refused:
            return Refuse(
                ConfigError(
                    f"rank {said.worker.rank} ({said.host}) cannot send its training state to rank {own.worker.rank}: "
                    f"{said.refusal}"
                )
            )
    # Of several new processes with the same rank, the one with the lowest nonce continues. If several processes with
    # rank 0 each began the job, the other ranks might each join a different one, and do so again with their next
    # proposals.
    before = [
        said
        for said in hearing.living
        if said.worker.rank == own.worker.rank and (said.number or said.worker.nonce < own.worker.nonce)
    ]
    if before and hearing.now >= hearing.since + TAKEN_S:
        return Refuse(
            RankTaken(
                f"rank {own.worker.rank} is a live process on {before[0].host}: give each worker its own rank"
            )
        )
    if live and all(said.is_waiting for said in live):
        ranks = sorted(said.worker.rank for said in live)
        return Wait(
            f"ranks {ranks}, which have lost others, to continue and admit this worker; their logs say what they "
            f"wait for"
        )
    if live:
        return Wait(f"the job's {len(live)} workers to admit this one between two steps")
    if before:
        return Wait(f"another process with rank {own.worker.rank}, on {before[0].host}, to end")
    return _to_begin(hearing)


def _to_begin(hearing: Hearing) -> Advice:
    """Advise a worker of a job that no worker has begun yet."""
    own, size = hearing.own, hearing.lineage.size
    everybody = sorted(
        (said.worker for said in (*hearing.living, own)), key=lambda one: one.nonce, reverse=True
    )
    there = {worker.rank: worker for worker in everybody}
    missing = [rank for rank in range(size) if rank not in there]
    if missing and hearing.now >= hearing.since + hearing.join_timeout_s:
        return Refuse(
            WorkersMissing(
                f"ranks {missing} of {size} did not join within {hearing.join_timeout_s:g} s (join_timeout_s): start "
                f"them, or find out why they are late"
            )
        )
    if missing:
        return Wait(f"ranks {missing} of {size}")
    if own.worker.rank:
        return Wait("rank 0 to begin")
    if hearing.heard_since is None and hearing.now >= hearing.since + hearing.join_timeout_s:
        return Refuse(
            ReducerUnavailable(
                f"no reducer has reported the present workers within {hearing.join_timeout_s:g} s (join_timeout_s)"
            )
        )
    if hearing.heard_since is None or hearing.now < hearing.heard_since + HEARD_S:
        return Wait("reducers to report the present workers")
    return Propose(Generation(1, hearing.new_id, tuple(there[rank] for rank in range(size))))


def _after_a_loss(hearing: Hearing) -> Advice:
    lineage, own = hearing.lineage, hearing.own
    last = lineage.last
    assert last is not None  # it has joined one
    if lineage.started is None and any(own.worker in one.newcomers for one in lineage.joined):
        # The others do not wait for it as for one of their own, and it may soon lack what they have done since.
        return Refuse(
            WorkerLost(
                f"generation {last.number}, the first one for rank {own.worker.rank}, has not started, "
                f"because another worker was lost at that moment: restart this rank"
            )
        )
    # A worker that was not in a generation that started may lack what the others have done since.
    together = frozenset((lineage.started or last).workers)
    waiting = {
        said.worker: said
        for said in hearing.living
        if said.is_waiting and said.number and said.worker in together
    }
    waiting[own.worker] = own
    gone = {said.worker for said in hearing.others.values() if said.is_gone}.union(lineage.ended)
    if any(said.missed == last.id for said in (*hearing.others.values(), own)):
        # Its newcomers did not get the training, so they have not joined it and never will.
        gone.update(last.newcomers)
    silent = [worker for worker in last.workers if worker not in waiting and worker not in gone]
    if silent and hearing.now < hearing.since + STOPPED_S:
        return Wait(f"ranks {[worker.rank for worker in silent]} to notice that a worker is lost")
    number = max(said.number for said in (*hearing.others.values(), own))
    wanted = Generation(max(number, lineage.number) + 1, hearing.new_id, tuple(sorted(waiting)))
    may_join = lineage.may_join(wanted)
    if own.worker == wanted.workers[0] and may_join:
        return Propose(wanted)
    ahead = [
        said
        for said in hearing.living
        if said.number >= lineage.number and said.generation != last.id and not said.is_waiting
    ]
    if ahead and hearing.now >= hearing.since + STOPPED_S:
        return Refuse(
            WorkerLost(
                f"the others have continued without rank {own.worker.rank}, in generation {ahead[0].number}: it did "
                f"not answer for too long; restart it"
            )
        )
    why = f"rank {wanted.workers[0].rank} to propose the next generation"
    if not may_join:
        why = _why_too_few(hearing, last, wanted)
    if hearing.now >= hearing.since + hearing.join_timeout_s:
        return Refuse(WorkersMissing(f"waited {hearing.join_timeout_s:g} s (join_timeout_s) for {why}"))
    return Wait(why)


def _why_too_few(hearing: Hearing, last: Generation, wanted: Generation) -> str:
    """Return which workers the remaining ones wait for, and why they cannot continue on their own."""
    lost = [one for one in last.workers if one not in wanted.workers and one not in hearing.lineage.ended]
    ranks = [worker.rank for worker in lost]
    back = sorted(
        {said.worker.rank for said in hearing.living if not said.number and said.worker.rank in ranks}
    )
    how = "a worker restarted on the host where it was killed proves that it has ended"
    if back:
        how = (
            f"ranks {back} are back, but on another host or in another container, or their predecessors have neither "
            f"ended nor said goodbye, so they cannot prove that those have ended"
        )
    return (
        f"ranks {ranks}: ranks {[worker.rank for worker in wanted.workers]} are left of the {len(last.workers)} "
        f"workers of generation {last.number} and are not a majority of it, and the others may still run behind a cut "
        f"link; {how}"
    )

"""What to do about reducers and ranks that come and go: a pure function of what a rank sees.

Every rank calls `judge` when something has changed and at every tick; only rank 0 ever gets `Reconfigure`.
The reason comes with the verdict, for the log.

    rank 0, first epoch        all listed reducers see all ranks      -> configure them
    rank 0, nothing broken     a member drains, others stay           -> configure the others
                               idle, and a non-member sees all        -> take it in
    rank 0, a stream broke     all members see all ranks again        -> same members, new epoch
        "reshard"              after grace_s, some members see all    -> those
                               none does, but a non-member            -> those
                               no grace for a member whose process is known to be gone: its address has another
                               one now, or the dial found nobody there
        "wait"                 all members' addresses see all         -> those, in their new lives too
        "raise"                after the same grace                   -> ReducerUnavailable
    all, after the grace       a rank is gone at every live reducer   -> WorkerLost
                               a rank has left, and we wait for more  -> PeerLeft
    all, after join_timeout_s  no epoch yet, or none that started     -> ReducerUnavailable
        with a fallback        and no reducer is left at all          -> FallBack, once, idle or not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from reduction.errors import (
    CollectiveTimeout,
    PeerLeft,
    RankTaken,
    ReducerUnavailable,
    ReductionError,
    WorkerLost,
)
from reduction.model import Configuration, Presence

from worker_plugin.core.link import Link, Phase

#: A lost stream may be dialled again within this time without further consequences, in seconds.
GRACE_S = 1.0
#: A rank that has not come to a reducer which is itself new, or back; as long as a silent host may take.
ABSENT_S = 10.0


@dataclass(frozen=True, slots=True)
class View:
    """What one rank sees at `now`; times in seconds on one monotonic clock."""

    now: float
    rank: int
    world_size: int
    links: Sequence[Link]
    configuration: Configuration | None
    #: Since when a stream of the present epoch is known to have broken; None while all stand.
    broken_since: float | None
    #: Since when the present epoch waits for a Start of all its members; None once all have come.
    unstarted_since: float | None
    #: Since when no reducer is reachable; the start, before the first one was.
    alone_since: float | None
    started_at: float
    is_idle: bool
    join_timeout_s: float
    timeout_s: float
    #: What follows when members are lost for good: "reshard", "wait" or "raise".
    on_reducer_loss: str = "reshard"
    #: Whether there may be a reducer of our own once no other is left.
    may_fall_back: bool = False
    #: Whether there is one.
    has_fallen_back: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Make a new epoch with these links."""

    links: tuple[Link, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The communicator has failed."""

    error: ReductionError


@dataclass(frozen=True, slots=True)
class FallBack:
    """Have rank 0 start a reducer for this job; the clocks begin anew."""

    reason: str


Verdict: TypeAlias = Keep | Reconfigure | GiveUp | FallBack

_KEEP = Keep()


def judge(view: View) -> Verdict:
    """Return what follows from the view. Same input, same output."""
    verdict = _judge(view)
    # Asked only now, because it looks at every rank on every link.
    if isinstance(verdict, Reconfigure) and (taken := _impostor(view)) is not None:
        return GiveUp(taken)
    return verdict


def _judge(view: View) -> Verdict:
    if view.configuration is None:
        return _first_epoch(view)
    if view.rank == 0:
        verdict = _membership(view)
        if verdict is not None:
            return verdict
    lost = _lost_rank(view)
    if lost is not None:
        return GiveUp(lost)
    # With nothing in flight as well: another rank may miss a result that this one has.
    if view.may_fall_back and view.alone_since is not None:
        is_due = view.now >= view.alone_since + view.join_timeout_s
        return FallBack(str(_unavailable(view))) if is_due else _KEEP
    for since in (view.alone_since, view.broken_since):
        if since is not None and view.now >= since + view.join_timeout_s and not view.is_idle:
            return GiveUp(_unavailable(view))
    if view.unstarted_since is not None and view.now >= view.unstarted_since + view.timeout_s:
        return GiveUp(
            CollectiveTimeout(f"epoch {view.configuration.epoch} has not started after {view.timeout_s:g} s")
        )
    return _KEEP


def _first_epoch(view: View) -> Verdict:
    wanted = [link for link in view.links if link.phase is not Phase.RETIRED]
    if view.has_fallen_back:
        wanted = [link for link in wanted if link.is_up] or wanted
    if view.rank == 0 and all(link.sees_all(view.world_size) for link in wanted):
        return Reconfigure(tuple(wanted), f"all {view.world_size} ranks are at all {len(wanted)} reducers")
    if view.now < view.started_at + view.join_timeout_s:
        lost = _lost_rank(view)
        return _KEEP if lost is None else GiveUp(lost)
    error = _unavailable(view)
    alone = not any(link.is_up for link in view.links)
    return FallBack(str(error)) if alone and view.may_fall_back else GiveUp(error)


def _membership(view: View) -> Verdict | None:
    """Rank 0's part, once there is an epoch."""
    assert view.configuration is not None
    by_incarnation = {link.incarnation: link for link in view.links if link.is_up}
    members = [by_incarnation.get(member.incarnation) for member in view.configuration.members]
    whole = [link for link in members if link is not None and link.sees_all(view.world_size)]
    others = [
        link
        for link in by_incarnation.values()
        if link not in members and link.sees_all(view.world_size) and not link.is_draining
    ]
    if view.broken_since is None:
        staying = [link for link in whole if not link.is_draining and not (link.is_fallback and others)]
        if len(whole) == len(members) and len(staying) < len(members) and staying + others:
            drains = any(link.is_draining for link in whole)
            reason = "a reducer is draining" if drains else "the fallback is not needed any more"
            return Reconfigure((*staying, *others), reason)
        if view.is_idle and others and len(whole) == len(members):
            return Reconfigure((*whole, *others), f"{others[0].address} is there and takes part from now on")
        return None
    if len(whole) == len(members):
        return Reconfigure(tuple(whole), "a stream broke, and all are there again")
    lost = [
        (link, member.address)
        for link, member in zip(members, view.configuration.members, strict=True)
        if link not in whole
    ]
    if view.on_reducer_loss == "wait":
        return _in_new_lives(view.configuration, others, whole)
    # A member whose process is gone never comes back: no need to wait for it.
    gone = {link.address for link in view.links if link.is_up or link.is_absent}
    may_return = any(link is not None or address not in gone for link, address in lost)
    if may_return and view.now < view.broken_since + GRACE_S:
        return None
    names = ", ".join(address for _, address in lost)
    if view.on_reducer_loss == "raise":
        # A reducer that only misses a rank may be the first to notice that the rank is gone.
        is_sure = any(link is None for link, _ in lost) or view.now >= view.broken_since + ABSENT_S
        error = ReducerUnavailable(f"lost {names}, and on_reducer_loss is 'raise'")
        return GiveUp(error) if is_sure and _lost_rank(view) is None else None
    return Reconfigure(tuple(whole or others), f"lost {names}") if whole or others else None


def _in_new_lives(
    configuration: Configuration, others: Sequence[Link], whole: Sequence[Link]
) -> Verdict | None:
    """Return the members by address, once all of them are there again, restarted or not."""
    by_address = {link.address: link for link in (*others, *whole)}
    again = [by_address.get(member.address) for member in configuration.members]
    there = tuple(link for link in again if link is not None)
    return Reconfigure(there, "all reducers are there again") if len(there) == len(again) else None


def _lost_rank(view: View) -> ReductionError | None:
    """Return the error for a rank that is gone at every reducer we can still ask."""
    live = [link for link in view.links if link.is_up]
    if not live:
        return None
    deciders = range(view.world_size) if view.rank == 0 else (0,)
    for rank in deciders:
        if all(_is_gone(view, link, rank) for link in live):
            host = next((link.peers[rank].host for link in live if rank in link.peers), "unknown host")
            where = ", ".join(link.address for link in live)
            return WorkerLost(f"rank {rank} ({host}) is gone: its streams to {where} broke without goodbye")
    # A rank that left in good order needs nobody; but whoever still waits for results can wait for ever.
    left = next((peer for link in live if (peer := link.has_left()) is not None), None)
    waits = (view.broken_since, view.unstarted_since)
    stuck = view.configuration is None or any(
        since is not None and view.now >= since + GRACE_S for since in waits
    )
    if left is not None and stuck and not view.is_idle:
        return PeerLeft(f"rank {left.rank} ({left.host}) closed while this rank waits for results")
    return None


def _is_gone(view: View, link: Link, rank: int) -> bool:
    peer = link.peers.get(rank)
    if peer is None:
        return view.configuration is not None and view.now >= link.up_since + ABSENT_S
    return peer.presence is Presence.LOST and view.now >= link.lost_since[rank] + GRACE_S


def _impostor(view: View) -> ReductionError | None:
    """Return an error if two processes claim one rank at different reducers."""
    seen: dict[int, bytes] = {}
    for link in view.links:
        for rank, peer in link.peers.items():
            if peer.presence is Presence.PRESENT and seen.setdefault(rank, peer.nonce) != peer.nonce:
                return RankTaken(f"two processes claim rank {rank}, one of them on {peer.host}")
    return None


def _unavailable(view: View) -> ReductionError:
    tried = [link for link in view.links if link.phase is not Phase.RETIRED]
    down = [link for link in tried if not link.is_up]
    if down:
        why = "; ".join(f"{link.address}: {link.error or 'no answer'}" for link in down)
        text = f"{len(down)} of {len(tried)} reducers are not there: {why}"
    elif view.rank == 0:
        absent = {
            link.address: [rank for rank in range(view.world_size) if not link.sees(rank)] for link in tried
        }
        who = "; ".join(f"{address} misses ranks {ranks}" for address, ranks in absent.items() if ranks)
        text = f"not all ranks have joined: {who}"
    else:
        text = f"rank 0 has not made a configuration; reached: {', '.join(link.address for link in tried)}"
    return ReducerUnavailable(f"after {view.join_timeout_s:g} s, {text}")

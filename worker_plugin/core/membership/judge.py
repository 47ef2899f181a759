"""What to do when reducers and ranks join and leave: a pure function of what a rank sees.

Every rank calls `judge` at every tick and when something has changed; only rank 0 ever gets `Reconfigure`.
The verdict carries its reason, for the log.

This module is one table of decisions, so it is longer than others.

    rank 0, first epoch        all listed reducers see all ranks      -> configure those with a share
        after join_timeout_s   only some of them do                   -> the same with those, if "reshard"
        after grace_s, in a job that continues an ended one: the same
    rank 0, nothing broken     a member drains, others stay           -> those of the others with a share
                               idle, or no longer patient: a non-member
                               that would have a share sees all       -> admit it
    rank 0, a stream broke     all members see all ranks again        -> same members, new epoch
        "reshard"              after grace_s, some reducers see all   -> those with a share
                               no grace for a member whose process is known to be gone: another process has its
                               address now, or the dial found nothing there
        "wait"                 as many reducers as before see all,
                               and none of them is still dialled      -> those with a share; a member's address may be
                               stale: its name resolves to another one, or its process has another port
        "raise"                after the same grace                   -> ReducerUnavailable
    all, after the grace       a rank is gone at every live reducer   -> WorkerLost
                               a rank has left, and we wait for more  -> PeerLeft
    all, after join_timeout_s  no reducer is there                    -> ReducerUnavailable
        with a fallback        the same                               -> FallBack, once, idle or not;
                                                                         no timeout runs until rank 0's is there
                               all ranks, but none that all reach     -> ReducerUnavailable
    all, after timeout_s       ranks are missing                      -> WorkersMissing
                               the epoch has not started              -> CollectiveTimeout

So `join_timeout_s` applies to reducers, and a late rank is waited for as in any other collective. A rank that
a reducer has never seen is late, not dead: it may have been busy while that reducer was restarted.
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
    WorkersMissing,
)
from reduction.limits import MEMBERS_MAX
from reduction.model import Configuration, Presence

from worker_plugin.core.link import Link, LinkPhase
from worker_plugin.core.membership.weights import with_share
from worker_plugin.core.words import ADVICE, DRAINING, down_text, missing_ranks, silent_ranks

#: How long a lost stream may take to be restored without further consequences, in seconds.
GRACE_S = 1.0
#: How long a rank may take to reach a reducer that others have already reached, in seconds. A silent host may take this
#: long to be noticed.
ABSENT_S = 10.0
#: How much longer than rank 0 the other ranks wait for missing ranks, in seconds, because only rank 0 knows which are
#: missing.
LEADER_S = 2.0


@dataclass(frozen=True, slots=True)
class View:
    """What one rank sees at `now`. Times are in seconds on one monotonic clock."""

    now: float
    rank: int
    world_size: int
    links: Sequence[Link]
    configuration: Configuration | None
    #: Since when a stream of the present epoch has been known to be broken; None while all are open.
    broken_since: float | None
    #: Since when the present epoch has been waiting for its members' Starts; None once all have arrived.
    unstarted_since: float | None
    #: Since when no reducer has been reachable. Until one has been reached, this is the start.
    alone_since: float | None
    #: On rank 0: since when every rank has been at some reducer, not necessarily the same one. On another rank: since
    #: when rank 0 has been at a reducer. None while that is not the case.
    met_since: float | None
    started_at: float
    is_idle: bool
    join_timeout_s: float
    timeout_s: float
    #: What to do when members are lost for good: "reshard", "wait" or "raise".
    on_reducer_loss: str = "reshard"
    #: Whether rank 0 may start a reducer when no other is left.
    may_fall_back: bool = False
    #: Whether rank 0 has started one.
    has_fallen_back: bool = False
    #: Whether rank 0 has yet to report where its reducer is, or why there is none.
    awaits_fallback: bool = False
    #: See `Identity.goes_on`.
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Make a new epoch with these links."""

    links: tuple[Link, ...]
    reason: str
    #: Whether reducers are missing that the job was given or has had.
    lacks_some: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The communicator has failed."""

    error: ReductionError


@dataclass(frozen=True, slots=True)
class FallBack:
    """Have rank 0 start a reducer for this job; the timeouts restart with its answer."""

    reason: str


Verdict: TypeAlias = Keep | Reconfigure | GiveUp | FallBack

_KEEP = Keep()


def judge(view: View) -> Verdict:
    """Return what follows from the view. This is a pure function."""
    verdict = _judge(view)
    # This check comes last because it looks at every rank on every link.
    if isinstance(verdict, Reconfigure) and (taken := _impostor(view)) is not None:
        return GiveUp(taken)
    return verdict


def _judge(view: View) -> Verdict:
    if view.awaits_fallback and not any(link.is_up for link in view.links):
        return _KEEP
    if view.configuration is None:
        return _first_epoch(view)
    if view.rank == 0:
        verdict = _membership(view)
        if verdict is not None:
            return verdict
    lost = _lost_rank(view)
    if lost is not None:
        return GiveUp(lost)
    # This applies even with nothing in flight, because another rank may lack a result that this one has.
    if view.may_fall_back and view.alone_since is not None:
        is_due = view.now >= view.alone_since + view.join_timeout_s
        return FallBack(_why_unavailable(view)[0]) if is_due else _KEEP
    if not view.is_idle:
        if view.alone_since is not None and view.now >= view.alone_since + view.join_timeout_s:
            return GiveUp(_unavailable(view))
        if view.alone_since is None and view.broken_since is not None:
            return _waiting(view, view.broken_since)
    if view.unstarted_since is not None and view.now >= view.unstarted_since + view.timeout_s:
        return GiveUp(
            CollectiveTimeout(
                f"{silent_ranks(view.links, view.configuration.epoch)} did not respond to membership epoch "
                f"{view.configuration.epoch} within {view.timeout_s:g} s (timeout_s): see the log there"
            )
        )
    return _KEEP


def _first_epoch(view: View) -> Verdict:
    wanted = [link for link in view.links if link.phase is not LinkPhase.RETIRED]
    if view.has_fallen_back:
        wanted = [link for link in wanted if link.is_up] or wanted
    there = [link for link in wanted if link.sees_all(view.world_size)]
    if view.rank == 0 and there and len(there) == len(wanted):
        return Reconfigure(with_share(wanted), f"all ranks ({view.world_size}) have joined all reducers")
    if (lost := _lost_rank(view)) is not None:
        return GiveUp(lost)
    is_early = view.now < view.started_at + view.join_timeout_s
    if not any(link.is_up for link in view.links):
        # A reducer that was there may be back soon.
        alone_since = view.started_at if view.alone_since is None else view.alone_since
        is_early = view.now < alone_since + view.join_timeout_s
        verdict = FallBack(_why_unavailable(view)[0]) if view.may_fall_back else GiveUp(_unavailable(view))
        return _KEEP if is_early else verdict
    may_leave_out = view.rank == 0 and view.on_reducer_loss == "reshard"
    is_time = _have_met_again(view) if view.goes_on else _have_met(view) and not is_early
    if there and may_leave_out and is_time:
        absent = ", ".join(link.address for link in wanted if link not in there)
        return Reconfigure(
            with_share(there),
            f"not all ranks can reach {absent}, which will take part once they can",
            lacks_some=True,
        )
    return _waiting(view, view.started_at)


def _waiting(view: View, since: float) -> Verdict:
    """Return the verdict for when no epoch can begin although a reducer is there."""
    if view.rank == 0 and view.met_since is not None:
        is_over = view.now >= since + view.join_timeout_s and _have_met(view)
        return GiveUp(_unavailable(view)) if is_over else _KEEP
    if view.met_since is not None:
        since = max(since, view.met_since) + LEADER_S
    return GiveUp(_missing(view)) if view.now >= since + view.timeout_s else _KEEP


def _have_met(view: View) -> bool:
    """Return whether all ranks are there, and have had time to reach all reducers that they can reach."""
    return view.met_since is not None and view.now >= view.met_since + ABSENT_S


def _have_met_again(view: View) -> bool:
    """Return whether all ranks, which have worked together before, are there along with the live reducers."""
    return view.met_since is not None and view.now >= view.met_since + GRACE_S


def _membership(view: View) -> Verdict | None:
    """Return rank 0's verdict on the members of the present epoch, or None if they may stay."""
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
            leaving = [f"{link.address} is {DRAINING}" for link in whole if link.is_draining]
            reason = leaving[0] if leaving else "the fallback is no longer needed"
            return Reconfigure(with_share((*staying, *others)), reason, lacks_some=bool(leaving))
        has_room = len(members) < MEMBERS_MAX
        # A fallback takes part only when all others are lost, however near to the ranks it is.
        newcomers = [link for link in others if not link.is_fallback]
        is_time = view.is_idle or any(link.has_waited(view.now) for link in newcomers)
        if is_time and newcomers and has_room and len(whole) == len(members):
            wanted = with_share((*whole, *newcomers))
            if new := [link for link in newcomers if link in wanted]:
                return Reconfigure(wanted, f"{new[0].address} is available and takes part from now on")
        return None
    if len(whole) == len(members):
        return Reconfigure(tuple(whole), "a stream broke, and all have reconnected")
    lost = [
        (link, member.address)
        for link, member in zip(members, view.configuration.members, strict=True)
        if link not in whole
    ]
    remaining = [*whole, *others]
    remaining = [link for link in remaining if not link.is_fallback] or remaining
    again = {link.address for link in remaining}
    if view.on_reducer_loss == "wait":
        dialled = {link.address for link in view.links if link.phase is not LinkPhase.RETIRED} - again
        if len(remaining) < len(members) or any(address in dialled for _, address in lost):
            return None
        return Reconfigure(with_share(remaining), "all reducers are back")
    # A member whose process is gone never comes back, so do not wait for it.
    gone = {link.address for link in view.links if link.is_up or link.is_absent}
    may_return = any(link is not None or address not in gone for link, address in lost)
    if may_return and view.now < view.broken_since + GRACE_S:
        return None
    names = ", ".join(address for _, address in lost)
    if view.on_reducer_loss == "raise":
        # A reducer that merely lacks a rank may be the first to notice that the rank is gone.
        is_sure = any(link is None for link, _ in lost) or view.now >= view.broken_since + ABSENT_S
        error = ReducerUnavailable(
            f"lost {names}, and on_reducer_loss is 'raise': restart from a checkpoint, or choose 'reshard'"
        )
        return GiveUp(error) if is_sure and _lost_rank(view) is None else None
    if all(address in again for _, address in lost):
        return Reconfigure(with_share(remaining), f"{names} restarted")
    return Reconfigure(with_share(remaining), f"lost {names}", lacks_some=True) if remaining else None


def _lost_rank(view: View) -> ReductionError | None:
    """Return the error for a rank that is gone at every reducer we can still ask."""
    live = [link for link in view.links if link.is_up]
    if not live:
        return None
    suspects = {rank for link in live for rank in link.lost_since}
    for rank in sorted(suspects if view.rank == 0 else suspects & {0}):
        known = [link.peers[rank] for link in live if rank in link.peers]
        grace_s = 0.0 if any(peer.has_ended for peer in known) else GRACE_S
        if all(_is_gone(view, link, rank, grace_s) for link in live):
            host = next(link.peers[rank].host for link in live if rank in link.peers)
            where = ", ".join(link.address for link in live)
            return WorkerLost(
                f"rank {rank} ({host}) is gone: its streams to {where} broke without goodbye; its log or its host's "
                f"may say why (out of memory?)"
            )
    # A rank that left cleanly needs no other rank, but one that still waits for results would wait forever.
    departed = next((peer for link in live if (peer := link.departed()) is not None), None)
    waits = (view.broken_since, view.unstarted_since)
    stuck = view.configuration is None or any(
        since is not None and view.now >= since + GRACE_S for since in waits
    )
    if departed is not None and stuck and not view.is_idle:
        return PeerLeft(
            f"rank {departed.rank} ({departed.host}) closed while this rank was waiting for results: see rank "
            f"{departed.rank}'s log"
        )
    return None


def _is_gone(view: View, link: Link, rank: int, grace_s: float) -> bool:
    """Return whether a rank that another reducer has lost is not expected at this one either."""
    if rank not in link.peers:
        return view.configuration is not None and view.now >= link.up_since + ABSENT_S
    return rank in link.lost_since and view.now >= link.lost_since[rank] + grace_s


def _impostor(view: View) -> ReductionError | None:
    """Return an error if two processes claim one rank at different reducers."""
    seen: dict[int, bytes] = {}
    for link in view.links:
        for rank, peer in link.peers.items():
            if peer.presence is Presence.PRESENT and seen.setdefault(rank, peer.nonce) != peer.nonce:
                return RankTaken(
                    f"two processes claim rank {rank}, one of them on {peer.host}: give each its own rank, or each job "
                    f"its own name"
                )
    return None


def _unavailable(view: View) -> ReductionError:
    cause, advice = _why_unavailable(view)
    return ReducerUnavailable(f"{cause}; {advice}")


def _why_unavailable(view: View) -> tuple[str, str]:
    """Return why no reducer can be used, and advice for the user."""
    tried = [link for link in view.links if link.phase is not LinkPhase.RETIRED]
    down = [link for link in tried if not link.is_up]
    within = f"within {view.join_timeout_s:g} s (join_timeout_s)"
    start_it = "check that `reducer serve` runs there and that the addresses are right"
    if down:
        return (
            f"{len(down)} of {len(tried)} reducers could not be reached {within}: {down_text(down)}",
            start_it,
        )
    absent = {
        link.address: [rank for rank in range(view.world_size) if not link.sees(rank)] for link in tried
    }
    if who := "; ".join(f"{address} is missing ranks {ranks}" for address, ranks in absent.items() if ranks):
        return (
            f"no reducer was reached by all ranks {within}: {who}",
            "check that their hosts can connect to it",
        )
    before = {member.address for member in view.configuration.members} if view.configuration else set()
    if missing := ", ".join(sorted(before - set(absent))):
        return f"no reducer has taken the place of {missing} {within}", start_it
    return (
        f"there were no more addresses of reducers {within}",
        "check what the names of the reducers resolve to",
    )


def _missing(view: View) -> ReductionError:
    within = f"within {view.timeout_s:g} s (timeout_s)"
    if view.rank and view.met_since is not None:
        return WorkersMissing(
            f"rank 0 did not begin {within}, because it is waiting for other ranks: its log names them"
        )
    who = "rank 0" if view.rank else missing_ranks(view.links, view.world_size)
    return WorkersMissing(f"{who} did not join {within}: {ADVICE}")

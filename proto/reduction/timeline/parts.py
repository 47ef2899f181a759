"""Divide one rank's time in collectives into parts that add up to it.

Collectives overlap, so their individual times cannot be added. This module divides a *round*, a time in
which at least one collective is in flight. With DDP there is usually one round per backward pass. Each
moment of a round belongs to the first of these parts that applies to any of its collectives:

    transfer        it is being pushed or awaits results, and every rank has begun to push
    ranks           some of it is pushed, and other ranks have not begun to push theirs
    credit          it waits to be pushed: others are in flight, or the credit is used up
    copy            it is handed to the sending thread; on a GPU this includes the copy to the host
    copy back       its result is copied to the tensor

So a copy counts only where nothing is transferred meanwhile, which is the time a faster copy could save.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reduction.timeline.record import Span

#: Start and end, in seconds.
Interval = tuple[float, float]
#: Rounds with fewer bytes than this share of the largest round's say nothing about the link's rate.
BYTES_SHARE_MIN = 0.5


class Begun(NamedTuple):
    """When the last rank began to push a collective, on the clock of the examined rank."""

    at: float
    #: The last rank, None if it is not known.
    rank: int | None


@dataclass(slots=True)
class Parts:
    """Seconds of a round, or of several together. The parts add up to `measured`."""

    rounds: int = 0
    collectives: int = 0
    #: Size of the contributions.
    nbytes: int = 0
    measured: float = 0.0
    transfer: float = 0.0
    #: Seconds by the rank that was waited for, None if the rank is not known.
    ranks: dict[int | None, float] = field(default_factory=lambda: defaultdict(float))
    credit: float = 0.0
    copy: float = 0.0
    copy_back: float = 0.0

    def __iadd__(self, other: Parts) -> Parts:
        self.rounds += other.rounds
        self.collectives += other.collectives
        self.nbytes += other.nbytes
        self.measured += other.measured
        self.transfer += other.transfer
        for rank, seconds in other.ranks.items():
            self.ranks[rank] += seconds
        self.credit += other.credit
        self.copy += other.copy
        self.copy_back += other.copy_back
        return self


def rounds(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Yield the collectives of each round. Unfinished collectives do not count."""
    group: list[Span] = []
    end = 0.0
    for span in spans:
        if span.done is None:
            continue
        if group and span.issued >= end:
            yield group
            group = []
        group.append(span)
        end = max(end, span.done)
    if group:
        yield group


def parts(group: Sequence[Span], begun: Mapping[int, Begun]) -> Parts:
    """Return the parts of one round.

    Args:
        group: collectives of the round, all finished.
        begun: by number of the collective; no rank waited for a collective without an entry.
    """
    transfer, credit, copy, back = [], [], [], []
    ranks: dict[int | None, list[Interval]] = defaultdict(list)
    for span in group:
        assert span.done is not None
        # A missing time, as in a collective without bytes, makes its part empty.
        taken = _or(span.taken, span.issued)
        first_push = _or(span.first_push, taken)
        whole = span.done if span.whole is None else max(first_push, span.whole)
        last = begun.get(span.seq, Begun(first_push, None))
        complete = min(max(first_push, last.at), whole)
        copy.append((span.issued, taken))
        credit.append((taken, first_push))
        ranks[last.rank].append((first_push, complete))
        transfer.append((complete, whole))
        back.append((whole, span.done))
    found = Parts(1, len(group), sum(span.nbytes for span in group))
    covered: list[Interval] = []
    covered, found.transfer = added(covered, transfer)
    for rank in sorted(ranks, key=lambda rank: -1 if rank is None else rank):
        covered, seconds = added(covered, ranks[rank])
        if seconds:
            found.ranks[rank] += seconds
    covered, found.credit = added(covered, credit)
    covered, found.copy = added(covered, copy)
    covered, found.copy_back = added(covered, back)
    found.measured = _length(covered)
    return found


def shortest_answers(spans: Iterable[Span]) -> dict[int, float]:
    """Return the shortest time from the first push of a collective to its first result, by collective size."""
    shortest: dict[int, float] = {}
    for span in spans:
        if (seconds := _answer(span)) is not None:
            shortest[span.nbytes] = min(seconds, shortest.get(span.nbytes, seconds))
    return shortest


def begun_by_own_clock(spans: Iterable[Span]) -> dict[int, Begun]:
    """Return when the last rank began to push, as far as one rank alone can tell.

    No chunk has a result before all ranks have pushed it. So if the first result takes longer than the
    shortest time ever seen for that size, it has waited for another rank. A rank that is always late by
    the same time cannot be told from a long path.
    """
    spans = list(spans)
    shortest = shortest_answers(spans)
    found = {}
    for span in spans:
        seconds = _answer(span)
        if seconds is not None and span.first_push is not None:
            found[span.seq] = Begun(span.first_push + seconds - shortest[span.nbytes], None)
    return found


def chunk_time(spans: Iterable[Span]) -> float:
    """Return the mean time from the push of a chunk to its result, in seconds; 0 if there is none.

    This is the mean of the first and the last chunk of each collective at each reducer, because only
    these are recorded.
    """
    times = [
        (lane.first_result - lane.first_push + lane.last_result - lane.last_push) / 2
        for span in spans
        for lane in span.lanes.values()
        if lane.first_result is not None and lane.last_result is not None
    ]
    return sum(times) / len(times) if times else 0.0


def best_rate(of_rounds: Iterable[Parts]) -> float:
    """Return the highest rate of a round's transfer in bytes/s, among rounds of many bytes; 0 without any."""
    of_rounds = list(of_rounds)
    least = BYTES_SHARE_MIN * max((one.nbytes for one in of_rounds), default=0)
    rates = [one.nbytes / one.transfer for one in of_rounds if one.transfer > 0 and one.nbytes >= least]
    return max(rates, default=0.0)


def ideal(one: Parts, rate: float) -> float:
    """Return the time for the bytes at a rate in bytes/s, which is never more than they took."""
    return min(one.transfer, one.nbytes / rate) if rate > 0 else one.transfer


def _answer(span: Span) -> float | None:
    first = min(
        (lane.first_result for lane in span.lanes.values() if lane.first_result is not None), default=None
    )
    return None if first is None or span.first_push is None else first - span.first_push


def _or(time: float | None, default: float) -> float:
    return default if time is None else max(time, default)


def added(covered: list[Interval], more: Iterable[Interval]) -> tuple[list[Interval], float]:
    """Return the union of all intervals, and by how much that is longer than `covered`."""
    merged: list[Interval] = []
    for start, stop in sorted([*covered, *more]):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return merged, _length(merged) - _length(covered)


def _length(intervals: Iterable[Interval]) -> float:
    return sum(stop - start for start, stop in intervals)

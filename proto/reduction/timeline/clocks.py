"""Find the offsets between the clocks of several hosts from their ranks' common collectives.

No rank can have the whole result of a collective before every rank has pushed all of it. So for each
collective that ranks a and b have in common, with times of their own clocks,

    whole_a >= last_push_b - offset    and    whole_b - offset >= last_push_a

where b's clock is ahead of a's by `offset`. Every collective bounds the offset from both sides, and the
tightest bounds are kept. This is the argument of NTP (RFC 5905, section 8) with the collectives as
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reduction.timeline.record import Record
from reduction.timeline.reducer_record import ReducerRecord


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a record's clock is ahead of the first record's."""

    seconds: float
    #: Maximum error; None if there is nothing to derive it from.
    error: float | None


def offsets(records: Sequence[Record]) -> list[Offset]:
    """Return the offset of each record's clock from the first record's.

    Ranks of one job have collectives in common. Hosts can be compared if a job has records on both, as
    the rails of a job do.
    """
    first = records[0]
    found: dict[str, Offset] = {first.clock: Offset(0.0, 0.0)}
    for other in records:
        if other.clock not in found:
            found[other.clock] = _offset(records, first, other)
    return [found[record.clock] for record in records]


def reducer_offsets(
    reducers: Sequence[ReducerRecord], records: Sequence[Record], known: Sequence[Offset]
) -> list[Offset]:
    """Return the offset of each reducer's clock from that of the first rank's record.

    A reducer receives a rank's first push after it was sent, and publishes the last sum before any rank
    has the whole result. `known` are the offsets of the ranks' records, in their order.
    """
    return [_reducer_offset(reducer, records, known) for reducer in reducers]


def _reducer_offset(reducer: ReducerRecord, records: Sequence[Record], known: Sequence[Offset]) -> Offset:
    least, most = -float("inf"), float("inf")
    spans = {span.seq: span for span in reducer.spans}
    for record, offset in zip(records, known, strict=True):
        if record.clock == reducer.clock:
            return offset
        if record.job != reducer.job:
            continue
        for mine in record.spans:
            theirs = spans.get(mine.seq)
            if theirs is None:
                continue
            begun = theirs.begun.get(record.rank)
            if begun is not None and mine.first_push is not None:
                most = min(most, begun - mine.first_push + offset.seconds)
            if mine.whole is not None:
                least = max(least, theirs.published - mine.whole + offset.seconds)
    if least == -float("inf") or most == float("inf"):
        return Offset(records[0].unix_offset - reducer.unix_offset, None)
    return Offset((least + most) / 2, max(0.0, (most - least) / 2))


def _offset(records: Sequence[Record], first: Record, other: Record) -> Offset:
    least, most = -float("inf"), float("inf")
    for mine in (record for record in records if record.clock == first.clock):
        for theirs in (record for record in records if record.clock == other.clock):
            if mine.job == theirs.job:
                low, high = _bounds(mine, theirs)
                least, most = max(least, low), min(most, high)
    if least == -float("inf") or most == float("inf"):
        # Fall back on the wall clocks of the two hosts, which are as accurate as they are set.
        return Offset(first.unix_offset - other.unix_offset, None)
    return Offset((least + most) / 2, max(0.0, (most - least) / 2))


def _bounds(first: Record, other: Record) -> tuple[float, float]:
    """Return the minimum and maximum offset that two records of one job allow, infinite without a bound."""
    mine = {span.seq: span for span in first.spans}
    least, most = -float("inf"), float("inf")
    for theirs in other.spans:
        own = mine.get(theirs.seq)
        if own is None or own.what != theirs.what:
            continue
        if own.whole is not None and theirs.last_push is not None:
            least = max(least, theirs.last_push - own.whole)
        if theirs.whole is not None and own.last_push is not None:
            most = min(most, theirs.whole - own.last_push)
    return least, most

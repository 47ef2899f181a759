"""Account for a job's collective time beyond the ideal, from the records of all ranks and reducers.

Each rank's rounds are divided as in parts.py. The records of all ranks show which rank began last. The
excess of the transfer over the ideal is divided further, round by round:

    reducers    the CPU time of the busiest reducer process, less the ideal. The transfer would have taken
                that long on an infinitely fast network
    slow ranks  the longest that a chunk waited at a reducer for the last rank to push it. A rank that stalls
                in a transfer soon holds up all others. Or a rank is the straggler of the job: the last to
                push most of the chunks, which spend most of their time waiting for it (stragglers.py)
    link        the rest

Without the reducers' records `link` includes the time of the network and of the reducers, and the slow rank
is the one that pushed its last byte later than all others. A rank that stalled earlier then goes unnoticed,
because the others waited for it and ended with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reduction.timeline.clocks import Offset
from reduction.timeline.parts import (
    Begun,
    Parts,
    begun_by_own_clock,
    best_rate,
    chunk_time,
    ideal,
    parts,
    rounds,
)
from reduction.timeline.record import Record, Span
from reduction.timeline.reducer_record import ReducerRecord, ReducerSpan
from reduction.timeline.stragglers import Straggler, straggler


@dataclass(slots=True)
class Loss:
    """Seconds of the rounds of all ranks together. `measured` is the sum of `ideal` and all shares."""

    parts: Parts = field(default_factory=Parts)
    ideal: float = 0.0
    #: By rank.
    slow: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    #: By the reducer's address.
    reducers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    link: float = 0.0
    straggler: Straggler | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Lost seconds by cause."""
        return {
            "copy": self.parts.copy,
            "credit": self.parts.credit,
            "late ranks": sum(self.parts.ranks.values()),
            "slow ranks": sum(self.slow.values()),
            "reducers": sum(self.reducers.values()),
            "link": self.link,
            "copy back": self.parts.copy_back,
        }


def loss(
    records: Sequence[Record],
    offsets: Sequence[Offset],
    reducers: Sequence[ReducerRecord] = (),
    rate: float | None = None,
) -> Loss:
    """Return where the time went.

    Args:
        records: records of one job's ranks. The first collective waits for the start, and does not count.
        offsets: offsets of their clocks, in the same order.
        reducers: records of the job's reducers, if there are any.
        rate: rate of each rank's link in bytes/s; None means the best rate in the rank's own rounds.
    """
    found = Loss(straggler=_straggler(reducers, records))
    late = _longest(reducers) if reducers else _ends(records, offsets)
    at_reducers = [(one.address, {span.seq: span for span in one.spans}) for one in reducers]
    for record, offset in zip(records, offsets, strict=True):
        spans = [span for span in record.spans if span.seq]
        begun = begun_by_own_clock(spans)
        if all(other.error is not None for other in offsets) and len(records) == record.world_size:
            begun = _begun(records, offsets, offset)
        groups = list(rounds(spans))
        of_rounds = [parts(group, begun) for group in groups]
        rate_here = best_rate(of_rounds) if rate is None else rate
        for group, one in zip(groups, of_rounds, strict=True):
            found.parts += one
            best = ideal(one, rate_here)
            found.ideal += best
            _divide(found, group, one.transfer - best, best, late, at_reducers)
    return found


def _divide(
    found: Loss,
    group: Sequence[Span],
    excess: float,
    best: float,
    late: Mapping[int, tuple[float, int]],
    at_reducers: Sequence[tuple[str, Mapping[int, ReducerSpan]]],
) -> None:
    """Divide the excess of a round's transfer over the ideal."""
    busiest, cpu = "", 0.0
    for address, spans in at_reducers:
        there = [spans[span.seq] for span in group if span.seq in spans]
        if there:
            took = max(one.cpu_at_published for one in there) - min(one.cpu_at_first_push for one in there)
            busiest, cpu = max((busiest, cpu), (address, took), key=lambda pair: pair[1])
    if (seconds := min(excess, max(0.0, cpu - best))) > 0:
        found.reducers[busiest] += seconds
        excess -= seconds
    for span in group:
        late_s, rank = late.get(span.seq, (0.0, 0))
        if (seconds := min(excess, late_s)) > 0:
            found.slow[rank] += seconds
            excess -= seconds
    if found.straggler is not None:
        found.slow[found.straggler.rank] += excess
    else:
        found.link += excess


def _begun(records: Sequence[Record], offsets: Sequence[Offset], mine: Offset) -> dict[int, Begun]:
    """Return for each collective of all ranks which rank began to push last, and when on one rank's clock."""
    begun: dict[int, Begun] = {}
    counts: dict[int, int] = defaultdict(int)
    for record, offset in zip(records, offsets, strict=True):
        for span in record.spans:
            if span.first_push is None:
                continue
            counts[span.seq] += 1
            at = span.first_push - offset.seconds + mine.seconds
            if span.seq not in begun or at > begun[span.seq].at:
                begun[span.seq] = Begun(at, record.rank)
    return {seq: one for seq, one in begun.items() if counts[seq] == len(records)}


def _ends(records: Sequence[Record], offsets: Sequence[Offset]) -> dict[int, tuple[float, int]]:
    """Return by how much the last rank pushed its last byte later than the one before, and which rank that is."""
    times: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for record, offset in zip(records, offsets, strict=True):
        for span in record.spans:
            # A rank that began late also ends late, which is already counted.
            if span.last_push is not None and span.first_push is not None and offset.error is not None:
                times[span.seq].append((span.last_push - offset.seconds, record.rank))
    begun = _begun(records, offsets, Offset(0.0, 0.0))
    ends = {}
    for seq, pushed in times.items():
        if len(pushed) == len(records) > 1 and seq in begun:
            (before, _), (last, rank) = sorted(pushed)[-2:]
            ends[seq] = max(0.0, last - max(before, begun[seq].at)), rank
    return ends


def _longest(reducers: Sequence[ReducerRecord]) -> dict[int, tuple[float, int]]:
    """Return the longest that a chunk of each collective waited for its last rank, and which rank that is."""
    waits: dict[int, tuple[float, int]] = {}
    for span in (span for record in reducers for span in record.spans):
        for rank, seconds in span.longest.items():
            waits[span.seq] = max(waits.get(span.seq, (0.0, rank)), (seconds, rank))
    return waits


def _straggler(reducers: Sequence[ReducerRecord], records: Sequence[Record]) -> Straggler | None:
    counts: dict[int, int] = defaultdict(int)
    waits: dict[int, float] = defaultdict(float)
    for record in reducers:
        for span in record.spans:
            if span.seq:
                for rank, chunks in span.last.items():
                    counts[rank] += chunks
                    waits[rank] += span.waited.get(rank, 0.0)
    found = straggler(counts, waits, reducers[0].world_size) if reducers else None
    if found is None:
        return None
    others = (span for record in records if record.rank != found.rank for span in record.spans if span.seq)
    return found if found.is_cause(chunk_time(others)) else None

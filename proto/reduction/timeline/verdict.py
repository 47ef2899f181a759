"""Describe in words where the time of collectives went, and which ranks the others waited for."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from reduction.text import counted
from reduction.timeline.clocks import Offset
from reduction.timeline.loss import Loss, loss
from reduction.timeline.parts import Interval, added
from reduction.timeline.record import Record
from reduction.timeline.reducer_record import ReducerRecord

#: A rank that issues a collective less than this after the previous rank is not late.
LATE_S = 0.001
#: Causes of less than this share of the time are shown together.
SHOWN = 0.01
#: A cause of less than this share of the time is not worth investigating.
WORTH_IT = 0.05


def verdict(
    records: Sequence[Record],
    offsets: Sequence[Offset],
    reducers: Sequence[ReducerRecord] = (),
    rate: float | None = None,
) -> Iterator[str]:
    """Yield lines about the records of one job's ranks, and of its reducers if given; `rate` as for `loss`."""
    yield from _lost(loss(records, offsets, reducers, rate), records, has_reducers=bool(reducers))
    for record in records:
        name = f"rank {record.rank} ({record.host})"
        if record.error:
            yield f"{name} ended with {record.error}"
        open_ones = [span for span in record.spans if span.done is None]
        if open_ones:
            oldest = open_ones[0]
            silent = [address for address, lane in oldest.lanes.items() if lane.last_result is None]
            yield (
                f"{name} has {len(open_ones)} without a result, the oldest is {oldest.seq}: {oldest.what}: "
                + (
                    f"{oldest.unpushed} of {oldest.nbytes} bytes not pushed, no result from "
                    f"{', '.join(silent) if silent else 'some chunks'}"
                )
            )
    yield from _stragglers(records, offsets)


def _lost(found: Loss, records: Sequence[Record], *, has_reducers: bool) -> Iterator[str]:
    """Yield the time of a round, the best time for its bytes, and the causes of the difference."""
    count, measured = found.parts.rounds, found.parts.measured
    if not count or not measured:
        return
    per_rank = max(1, len(records))
    yield (
        f"mean of {counted(count, 'round')} of {counted(per_rank, 'rank')}: {_ms(measured / count)} for "
        f"{_size(found.parts.nbytes / count)} in {found.parts.collectives / count:.1f} collectives; "
        f"ideal {_ms(found.ideal / count)} -> {100 * found.ideal / measured:.0f} %"
    )
    lost = sorted(_named(found, records, has_reducers).items(), key=lambda pair: -pair[1])
    shown = [f"{_ms(seconds / count)} {name}" for name, seconds in lost if seconds >= SHOWN * measured]
    rest = sum(seconds for _, seconds in lost if seconds < SHOWN * measured)
    if rest > 0:
        shown.append(f"{_ms(rest / count)} other")
    if shown:
        yield f"lost {_ms((measured - found.ideal) / count)}: {', '.join(shown)}"
    if found.straggler is not None:
        yield f"-> {found.straggler.advice()}"
    elif lost and lost[0][1] >= WORTH_IT * measured:
        late = lost[0][0].startswith("waiting for rank")
        yield f"-> most of it: {lost[0][0]}{': look at its data loader' if late else ''}"


def _named(found: Loss, records: Sequence[Record], has_reducers: bool) -> dict[str, float]:
    """Return the lost seconds by cause, in words."""
    hosts = {record.rank: record.host for record in records}
    named = {
        "copying to the host or to the thread that sends": found.parts.copy,
        "waiting to be sent (credit, GIL)": found.parts.credit,
        "copying back": found.parts.copy_back,
        "on the links" if has_reducers else "on the links or at the reducers": found.link,
    }
    for rank, seconds in found.parts.ranks.items():
        who = "other ranks" if rank is None else f"rank {rank} ({hosts[rank]})"
        named[f"waiting for {who} to begin"] = seconds
    for rank, seconds in found.slow.items():
        named[f"waiting for the rest of rank {rank} ({hosts.get(rank, '?')})"] = seconds
    for address, seconds in found.reducers.items():
        named[f"summing at reducer {address} (CPU)"] = seconds
    return named


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.2f} kB"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _stragglers(records: Sequence[Record], offsets: Sequence[Offset]) -> Iterator[str]:
    """Yield which rank issued collectives later than all others, by more than the clocks' error."""
    issued: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for index, (record, offset) in enumerate(zip(records, offsets, strict=True)):
        for span in record.spans:
            issued[span.seq].append((span.issued - offset.seconds, index))
    complete = [sorted(times) for times in issued.values() if len(times) == len(records) > 1]
    if not complete:
        return
    errors = [offset.error for offset in offsets if offset.error is not None]
    if len(errors) < len(offsets):
        yield "the clocks of these hosts cannot be compared, so who was late is not known"
        return
    # Two clocks may both be wrong relative to the first clock, in opposite directions.
    doubt = LATE_S + sum(sorted(errors)[-2:])
    waits: dict[int, list[Interval]] = defaultdict(list)
    for times in complete:
        (before, _), (last, index) = times[-2:]
        if last - before > doubt:
            waits[index].append((statistics.median(time for time, _ in times[:-1]), last))
    if not waits:
        yield f"all ranks issued them within {1e3 * doubt:.1f} ms of each other"
        return
    index = max(waits, key=lambda index: len(waits[index]))
    record, late = records[index], waits[index]
    yield (
        f"rank {record.rank} ({record.host}) was late most often, for {len(late)} of {len(complete)} collectives; the "
        f"others waited {1e3 * statistics.mean(end - begin for begin, end in late):.1f} ms for it each time, "
        f"{added([], late)[1]:.2f} s in all"
    )

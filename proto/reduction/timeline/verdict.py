"""Where the time of collectives went, in words: the parts of it, and the ranks that the others waited for."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from reduction.timeline.chrome import phases
from reduction.timeline.clocks import Offset
from reduction.timeline.record import Record

#: A rank that issues a collective less than this after the one before it is not late.
LATE_S = 0.001


def verdict(records: Sequence[Record], offsets: Sequence[Offset]) -> Iterator[str]:
    """Yield lines about the records of one job's ranks."""
    yield from _parts(records)
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


def _parts(records: Sequence[Record]) -> Iterator[str]:
    """Yield how long a collective took and the parts of that. The first one does not count: it waits for the start."""
    times: dict[str, float] = defaultdict(float)
    done = [span for record in records for span in record.spans if span.done is not None and span.seq]
    for span in done:
        for name, start, stop in phases(span):
            times[name] += stop - start
    if done:
        parts = ", ".join(f"{name} {1e3 * seconds / len(done):.2f}" for name, seconds in times.items())
        yield f"mean of {len(done)} collectives: {1e3 * sum(times.values()) / len(done):.2f} ms = {parts}"


def _stragglers(records: Sequence[Record], offsets: Sequence[Offset]) -> Iterator[str]:
    """Yield who issued collectives later than all others, by more than the clocks may be wrong."""
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
    # Two clocks may each be wrong to the first one's, in opposite directions.
    doubt = LATE_S + sum(sorted(errors)[-2:])
    waits: dict[int, list[float]] = defaultdict(list)
    for times in complete:
        (before, _), (last, index) = times[-2:]
        if last - before > doubt:
            waits[index].append(last - statistics.median(time for time, _ in times[:-1]))
    if not waits:
        yield f"all ranks issued them within {1e3 * doubt:.1f} ms of each other"
        return
    index = max(waits, key=lambda index: len(waits[index]))
    record, late = records[index], waits[index]
    yield (
        f"rank {record.rank} ({record.host}) was late most often, for {len(late)} of {len(complete)} collectives; the "
        f"others waited {1e3 * statistics.mean(late):.1f} ms for it each time"
    )

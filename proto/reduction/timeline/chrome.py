"""Traces for Perfetto and chrome://tracing in Chrome's JSON format, with one process per rank and reducer.

The format is "Trace Event Format" by Nat Duca and Dror Gross. Its times are microseconds. The key
baseTimeNanoseconds is the time 0 in nanoseconds since 1970. torch.profiler also writes it (Kineto,
since torch 2.4).

Collectives overlap, and Perfetto loses slices that cross each other on one line. So a rank has one line
for collectives and one for each reducer, each with "async" events that have their own ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from reduction.errors import ConfigError
from reduction.timeline.clocks import Offset
from reduction.timeline.record import Record, Span
from reduction.timeline.reducer_record import ReducerRecord

Event = dict[str, Any]
#: Name, start and end.
Slice = tuple[str, float, float]


def document(
    records: Sequence[Record],
    offsets: Sequence[Offset],
    reducers: Sequence[ReducerRecord] = (),
    reducer_offsets: Sequence[Offset] = (),
) -> dict[str, Any]:
    """Return the trace of several ranks and reducers on the first rank's clock."""
    starts = (
        span.issued - offset.seconds
        for record, offset in zip(records, offsets, strict=True)
        for span in record.spans
    )
    begin = min(starts, default=0.0)
    events: list[Event] = []
    for number, (record, offset) in enumerate(zip(records, offsets, strict=True)):
        events += _rank_events(number, record, begin + offset.seconds)
    clocks = {
        f"{record.job} rank {record.rank}": {
            "host": record.host,
            "offset_s": offset.seconds,
            "error_s": offset.error,
        }
        for record, offset in zip(records, offsets, strict=True)
    }
    for number, (reducer, offset) in enumerate(zip(reducers, reducer_offsets, strict=True), len(records)):
        events += _reducer_events(number, reducer, begin + offset.seconds)
        clocks[f"{reducer.job} reducer {reducer.address}"] = {
            "host": reducer.host,
            "offset_s": offset.seconds,
            "error_s": offset.error,
        }
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": round((begin + records[0].unix_offset) * 1e9),
        "clocks": clocks,
    }


def add_profile(
    document: dict[str, Any], profile: dict[str, Any], records: Sequence[Record], clocks: Sequence[Offset]
) -> None:
    """Add an export of torch.profiler to the time line of a trace.

    Args:
        document: result of `document` for the records. The events are added to it.
        profile: output of `export_chrome_trace`. Its events are changed.
        records: records of the trace.
        clocks: clock offsets of the records.

    Raises:
        ConfigError: `profile` is not such an export, or comes from a host without a record.
    """
    try:
        host, events = profile["host_name"], profile["traceEvents"]
        base_s = profile["baseTimeNanoseconds"] / 1e9
        with_host = (number for number, record in enumerate(records) if record.host == host)
        number = next(with_host, None)
        if number is None:
            raise ConfigError(
                f"host {host!r} has no record in this trace, only {sorted({record.host for record in records})}"
            )
        # From the host's wall clock to its monotonic clock, to the first record's, and to the wall clock of that.
        shift_s = records[0].unix_offset - records[number].unix_offset - clocks[number].seconds
        shift_us = (base_s + shift_s - document["baseTimeNanoseconds"] / 1e9) * 1e6
        rank = profile.get("distributedInfo", {}).get("rank", "?")
        others = {event["pid"] for event in document["traceEvents"]}
        for event in events:
            if "ts" in event:
                event["ts"] += shift_us
            if event.get("name") == "process_name":
                event["args"]["name"] += f", rank {rank} ({host}), torch.profiler"
            # Processes of different hosts may have the same number.
            event["pid"] = f"{event['pid']} of {host}" if event["pid"] in others else event["pid"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"it is not an export of torch.profiler 2.4 or later: {error!r}") from None
    document["traceEvents"] += events


def _rank_events(pid: int, record: Record, begin: float) -> Iterator[Event]:
    """Yield the events of one rank; `begin` is time 0 on its clock."""
    title = f"{record.job} rank {record.rank} ({record.host})"
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "args": {"name": "collectives"}}
    addresses = sorted({address for span in record.spans for address in span.lanes})
    for tid, address in enumerate(addresses, 1):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": address}}
    for span in record.spans:
        for tid, whole, parts in _lines(span, addresses):
            event = {"cat": "reduction", "pid": pid, "tid": tid, "id": f"{pid}.{tid}.{whole[0]}"}
            # The whole slice begins before its parts and ends after them, also in the file.
            name, start, end = whole
            yield event | {"ph": "b", "name": name, "ts": _us(start - begin), "args": _arguments(span)}
            for part, since, until in parts:
                yield event | {"ph": "b", "name": part, "ts": _us(since - begin)}
                yield event | {"ph": "e", "name": part, "ts": _us(until - begin)}
            yield event | {"ph": "e", "name": name, "ts": _us(end - begin)}
    for note in record.notes:
        yield {"ph": "i", "s": "p", "name": note.text, "pid": pid, "tid": 0, "ts": _us(note.at - begin)}


def _reducer_events(pid: int, record: ReducerRecord, begin: float) -> Iterator[Event]:
    """Yield the events of one reducer, each collective from its first push to its last result."""
    title = f"{record.job} reducer {record.address} ({record.host})"
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "args": {"name": "sums"}}
    for span in record.spans:
        event = {"cat": "reduction", "pid": pid, "tid": 0, "id": f"{pid}.0.sum {span.seq}"}
        begun = max(span.begun.values(), default=span.first_push)
        parts = [
            (f"sum {span.seq}", span.first_push, span.published),
            ("waiting for ranks", span.first_push, begun),
            ("summing", begun, span.published),
        ]
        arguments = {
            "seq": span.seq,
            "chunks": span.chunks,
            "last": {str(rank): chunks for rank, chunks in sorted(span.last.items())},
            "cpu_ms": 1e3 * (span.cpu_at_published - span.cpu_at_first_push),
        }
        yield event | {"ph": "b", "name": parts[0][0], "ts": _us(parts[0][1] - begin), "args": arguments}
        for name, start, stop in parts[1:]:
            yield event | {"ph": "b", "name": name, "ts": _us(start - begin)}
            yield event | {"ph": "e", "name": name, "ts": _us(max(start, stop) - begin)}
        yield event | {"ph": "e", "name": parts[0][0], "ts": _us(max(parts[0][2], begun) - begin)}


def _lines(span: Span, addresses: Sequence[str]) -> Iterator[tuple[int, Slice, list[Slice]]]:
    """Yield the slice of a collective on each of its lines, and the parts of the slice."""
    times = (span.issued, span.taken, span.last_push, span.whole, span.done)
    end = max(time for time in times if time is not None)
    yield 0, (f"{span.seq}: {span.what}", span.issued, end), list(phases(span))
    for address, lane in span.lanes.items():
        parts = [("push", lane.first_push, lane.last_push)]
        if lane.first_result is not None and lane.last_result is not None:
            parts.append(("results", lane.first_result, lane.last_result))
        # The first results arrive while the last bytes are pushed, so these two overlap.
        for name, start, stop in parts:
            yield addresses.index(address) + 1, (f"{name} {span.seq}", start, stop), []


def phases(span: Span) -> Iterator[Slice]:
    """Yield the name, start and end of each finished part of a collective; together they cover all of its time.

    handed over: from the user's thread to the sending thread; on a GPU this includes the copy to the host.
    waiting to push: other collectives are in flight, or the credit is used up.
    pushing: from the first byte to the last.
    waiting for results: for those of the last bytes, that is for other ranks, reducers and the way back.
    delivered: copied to the tensor, and the future completed.
    """
    names = ("handed over", "waiting to push", "pushing", "waiting for results", "delivered")
    start = span.issued
    for name, stop in zip(
        names, (span.taken, span.first_push, span.last_push, span.whole, span.done), strict=True
    ):
        if stop is None:
            return
        yield name, start, max(start, stop)
        start = max(start, stop)


def _arguments(span: Span) -> dict[str, Any]:
    return {"seq": span.seq, "bytes": span.nbytes, "unpushed": span.unpushed}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)

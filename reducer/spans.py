"""`Spans`: when a reducer process got and published each collective of its jobs, for `reducer serve --trace`.

Without that option there is none of this. With it a push costs 0.1 us and a published chunk 1.3 us, most of it
for the CPU clock.
"""

from __future__ import annotations

import collections
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from reduction.log_limit import LINES, Repeats
from reduction.process.place import loopback_id
from reduction.timeline.files import OwnFile, file_name
from reduction.timeline.reducer_record import ReducerRecord, ReducerSpan

log = logging.getLogger(__name__)

#: Collectives of a job that are kept.
KEPT = 1024
#: Jobs whose files may be written again.
FILES_MAX = 1024
#: How many files are named in the log at once.
FILES_BURST = 16


class _JobSpans:
    def __init__(self, job: str, world_size: int) -> None:
        self.job = job
        self.world_size = world_size
        self.spans: collections.OrderedDict[int, ReducerSpan] = collections.OrderedDict()


class Spans:
    """The latest collectives of each job. For the loop's thread.

    Args:
        directory: where the files go.
        address: where this process listens.
        clock: shows seconds.
        cpu_clock: shows the CPU time of this thread in seconds.
        lines: what peers can cause goes into the log through it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        address: str,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        lines: Repeats = LINES,
    ) -> None:
        self._directory = Path(directory)
        self._address = address
        self._lines = lines
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._jobs: dict[int, _JobSpans] = {}
        #: By the name of its job.
        self._files: collections.OrderedDict[str, OwnFile] = collections.OrderedDict()

    def on_push(self, key: int, job: str, world_size: int, rank: int, seq: int) -> None:
        """Record a push before it is handled; `key` is a number that no other job has."""
        kept = self._jobs.get(key)
        if kept is None:
            kept = self._jobs[key] = _JobSpans(job, world_size)
        span = kept.spans.get(seq)
        if span is None:
            now, cpu = self._clock(), self._cpu_clock()
            span = kept.spans[seq] = ReducerSpan(seq, now, now, cpu, cpu)
            if len(kept.spans) > KEPT:
                kept.spans.popitem(last=False)
        if rank not in span.begun:
            span.begun[rank] = self._clock()

    def on_publish(self, key: int, seq: int, rank: int, opened_at: float) -> None:
        """Record that a chunk's sum went to all ranks; `rank` was the last to push it."""
        kept = self._jobs.get(key)
        span = None if kept is None else kept.spans.get(seq)
        if span is not None:
            span.published, span.cpu_at_published = self._clock(), self._cpu_clock()
            span.chunks += 1
            span.last[rank] = span.last.get(rank, 0) + 1
            # A rank that begins late is another matter than one that is slow.
            since = max((opened_at, *span.begun.values()))
            waited = max(0.0, span.published - since)
            span.waited[rank] = span.waited.get(rank, 0.0) + waited
            span.longest[rank] = max(span.longest.get(rank, 0.0), waited)

    def take_ended(self, present: Iterable[int]) -> list[ReducerRecord]:
        """Return the records of jobs that are not among those present, and forget them."""
        ended = self._jobs.keys() - set(present)
        return [self._record(self._jobs.pop(key)) for key in ended]

    def records(self) -> list[ReducerRecord]:
        """Return the records of all jobs as they are now."""
        return [self._record(kept) for kept in self._jobs.values()]

    def _record(self, kept: _JobSpans) -> ReducerRecord:
        spans = tuple(kept.spans.values())
        offset = time.time() - time.monotonic()
        return ReducerRecord(
            kept.job, kept.world_size, self._address, socket.gethostname(), loopback_id(), offset, spans
        )

    def write(self, records: Iterable[ReducerRecord]) -> None:
        """Write each into the file of its job and this process; a failure is only logged."""
        for record in records:
            name = file_name(record.job, f"-reducer-{record.address}-{os.getpid()}")
            file = self._files.pop(record.job, None) or OwnFile(self._directory, name)
            try:
                path = file.write(record.to_json())
            except OSError as failure:
                text = "no trace in %s: %s"
                self._lines.log(log, logging.WARNING, "trace", "", text, self._directory, failure)
                continue
            self._files[record.job] = file
            if len(self._files) > FILES_MAX:
                self._files.popitem(last=False)
            self._lines.log(log, logging.INFO, "trace", "", "trace: %s", path, burst=FILES_BURST)

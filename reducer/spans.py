"""Times at which a reducer process received and published each collective, for `reducer serve --trace`.

Without that option nothing is recorded. With it a push costs 0.1 us and a published chunk 1.3 us, most of it
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

#: Number of collectives kept per job.
KEPT = 1024
#: Number of jobs whose files may be rewritten.
FILES_MAX = 1024
#: Burst of log lines that name files.
FILES_BURST = 16


class _JobSpans:
    def __init__(self, job: str, world_size: int) -> None:
        self.job = job
        self.world_size = world_size
        self.spans: collections.OrderedDict[int, ReducerSpan] = collections.OrderedDict()


class Spans:
    """The latest collectives of each job. Use it on the loop's thread.

    Args:
        directory: directory for the files.
        address: address at which this process listens.
        clock: returns seconds.
        cpu_clock: returns the CPU time of this thread in seconds.
        lines: limits log lines that peers can cause.
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
        #: Files by job name.
        self._files: collections.OrderedDict[str, OwnFile] = collections.OrderedDict()

    def on_push(self, key: int, job: str, world_size: int, rank: int, seq: int) -> None:
        """Record a push before it is handled; `key` is a number unique to the job."""
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
        """Record that a chunk's sum was sent to all ranks; `rank` was the last to push it."""
        kept = self._jobs.get(key)
        span = None if kept is None else kept.spans.get(seq)
        if span is not None:
            span.published, span.cpu_at_published = self._clock(), self._cpu_clock()
            span.chunks += 1
            span.last[rank] = span.last.get(rank, 0) + 1
            # Do not count the lateness of a rank's beginning as slowness.
            since = max((opened_at, *span.begun.values()))
            waited = max(0.0, span.published - since)
            span.waited[rank] = span.waited.get(rank, 0.0) + waited
            span.longest[rank] = max(span.longest.get(rank, 0.0), waited)

    def take_ended(self, present: Iterable[int]) -> list[ReducerRecord]:
        """Return and forget the records of jobs that are no longer present."""
        ended = self._jobs.keys() - set(present)
        return [self._record(self._jobs.pop(key)) for key in ended]

    def records(self) -> list[ReducerRecord]:
        """Return the current records of all jobs."""
        return [self._record(kept) for kept in self._jobs.values()]

    def _record(self, kept: _JobSpans) -> ReducerRecord:
        spans = tuple(kept.spans.values())
        offset = time.time() - time.monotonic()
        return ReducerRecord(
            kept.job, kept.world_size, self._address, socket.gethostname(), loopback_id(), offset, spans
        )

    def write(self, records: Iterable[ReducerRecord]) -> None:
        """Write each record to the file of its job and this process. Failures are only logged."""
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

"""Print `reducer status`: tables that fit 80 columns, and a full list with `--verbose`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

from reduction.model import EndedJob, JobStatus, LastRank, ReducerStatus
from rich.console import Console
from rich.table import Column, Table

from reducer.observe.summary import Rates, Summary, groups
from reducer.resources.sizes import size_text

#: Columns of output that does not go to a terminal.
PIPE_WIDTH = 240
#: `--verbose` shows at most this many of the ranks that others wait for.
LAST_RANKS = 3
#: `--verbose` lists at most this many ranks of a job.
RANKS_MAX = 64


class _Trimmed:
    """A file wrapper that strips trailing blanks from lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write whole lines, as consoles do."""
        return self._file.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def make_console(pipe_width: int | None = PIPE_WIDTH) -> Console:
    """Return a console without markup, because a peer may call its job [bold].

    Args:
        pipe_width: columns of output that does not go to a terminal; None for the value of COLUMNS, or 80.
    """
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.file = cast("TextIO", _Trimmed(sys.stdout))
        console.width = pipe_width or console.width
    return console


def render(console: Console, summary: Summary, *, verbose: bool) -> None:
    """Print a summary for people."""
    versions = ", ".join(sorted({answer.version for answer in summary.answers})) or "unknown"
    reducers, processes = len(groups(summary.processes)), len(summary.processes)
    count = f"{reducers}" if reducers == processes else f"{reducers} with {processes} processes"
    console.print(f"reducers: {count}, version {versions}, jobs: {len(summary.jobs)}")
    console.print(_processes(summary))
    console.print(_jobs(summary) if summary.jobs else "no jobs")
    if summary.ended:
        console.print(_ended(summary.ended))
    for job in summary.jobs:
        console.print(f"{job.title}: {job.verdict}")
    if verbose:
        for line in _details(summary):
            console.print(line)


def _table(*columns: Column | str) -> Table:
    return Table(*columns, box=None, padding=(0, 1, 0, 0), header_style="underline")


def _number(title: str) -> Column:
    return Column(title, justify="right", no_wrap=True)


def _processes(summary: Summary) -> Table:
    table = _table(
        Column("reducer", overflow="fold"),
        Column("state", no_wrap=True),
        _number("up"),
        _number("in MiB/s"),
        _number("out MiB/s"),
        _number("resident"),
        _number("reserved"),
        _number("full"),
    )
    for group in groups(summary.processes):
        for process in group:
            # The other processes of a reducer are listed below the one that advertised them.
            name = process.address if process is group[0] else f"  {process.address}"
            if (status := process.status) is None:
                table.add_row(name, process.state)
                continue
            times = duration_text(status.uptime_seconds), *_rates(summary.rates.get(process.address))
            table.add_row(name, process.state, *times, *_memory(status))
    if len(summary.processes) > 1:
        table.add_row("total", "", "", *_rates(summary.total_rates), *_memory(summary))
    return table


def _memory(of: ReducerStatus | Summary) -> tuple[str, str, str]:
    """Return the memory in use, the memory promised to jobs, and the latter's part of the limit."""
    part = of.memory_reserved_bytes / max(of.memory_limit_bytes, 1)
    return size_text(of.resident_bytes), size_text(of.memory_reserved_bytes), f"{part:.0%}"


def _jobs(summary: Summary) -> Table:
    table = _table(
        Column("job", overflow="fold"),
        _number("ranks"),
        Column("state", no_wrap=True),
        _number("in MiB/s"),
        _number("out MiB/s"),
        Column("slowest", no_wrap=True),
    )
    for job in summary.jobs:
        table.add_row(job.title, job.ranks, job.state, *_rates(job.rates), job.slowest)
    return table


def _ended(jobs: Sequence[EndedJob]) -> Table:
    table = _table(
        Column("job", overflow="fold"),
        _number("ranks"),
        Column("state", no_wrap=True),
        _number("collectives"),
        _number("in"),
        _number("out"),
        _number("waited at least for"),
        _number("ago"),
    )
    for job in jobs:
        table.add_row(
            job.title,
            str(job.world_size),
            job.outcome.name.lower(),
            str(job.collectives),
            size_text(job.received_bytes),
            size_text(job.sent_bytes),
            f"{job.waited_for}: {job.waited_s:.1f} s",
            duration_text(job.ago_s),
        )
    return table


def _details(summary: Summary) -> Iterator[str]:
    for process in summary.processes:
        status = process.status
        yield ""
        if status is None:
            yield f"{process.address}: no answer: {process.reason}"
            continue
        yield (
            f"{process.address}: {process.state}, version {status.version}, up {status.uptime_seconds:.0f} s, jobs may "
            f"reserve {size_text(status.memory_limit_bytes)}"
        )
        for job in status.jobs:
            yield f"  {job.title}"
            for name, value in _properties(job):
                yield f"    {name + ':':<24} {value}"


def _properties(job: JobStatus) -> Iterator[tuple[str, str]]:
    names = [f"{peer.rank} {peer.host} {peer.presence.name.lower()}" for peer in job.peers]
    more = [f"and {len(names) - RANKS_MAX} more"] if len(names) > RANKS_MAX else []
    yield "ranks", ", ".join(names[:RANKS_MAX] + more)
    planes = job.planes
    yield "streams", f"{planes.shared} in shared memory, {planes.tcp} on tcp, {planes.grpc} on grpc"
    yield "epoch", f"{job.epoch}{'' if job.started else ' (starting)'}"
    yield "collectives held by all", str(job.minimum)
    yield "waiting chunks", str(job.open_slots)
    yield "chunk", size_text(job.chunk_bytes)
    yield "in flight, of credit", f"{size_text(job.under_way_bytes)} of {size_text(job.credit_bytes)}"
    yield "received, sent", f"{size_text(job.received_bytes)}, {size_text(job.sent_bytes)}"
    yield "reserved", size_text(job.reserved_bytes)
    yield "wait p50/p99", f"{job.waits.p50_s * 1e3:.1f}/{job.waits.p99_s * 1e3:.1f} ms"
    yield "last rank: its share", _latest(job.last)
    if job.waiting is not None:
        yield "waits for", f"{job.waiting}, for {job.waiting.waited_s:.1f} s so far"


def _latest(last: tuple[LastRank, ...]) -> str:
    """Return the ranks that were most often the last to push a chunk."""
    chunks = sum(entry.chunks for entry in last)
    most = sorted(last, key=lambda entry: entry.chunks, reverse=True)[:LAST_RANKS]
    return ", ".join(f"{entry.rank}: {entry.chunks / chunks:.0%}" for entry in most)


def _rates(rates: Rates | None) -> tuple[str, str]:
    if rates is None:
        return "-", "-"
    return f"{rates.received / (1 << 20):.1f}", f"{rates.sent / (1 << 20):.1f}"


def duration_text(seconds: float) -> str:
    """Return a time in the largest unit that gives at least 2."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"

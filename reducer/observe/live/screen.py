"""Draw a view with rich: tables of hosts and jobs, and the latest events below them.

The tables fit 80 columns, and have more columns from WIDE on. The colours are readable on light and on
dark terminals, which yellow and blue are not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from reducer.observe.live.feed import BACK, SILENT, Entry
from reducer.observe.live.view import HostRow, JobRow, View
from reducer.observe.tables import duration_text
from reducer.resources.sizes import size_text

#: From this width on, the tables have all columns.
WIDE = 120
#: Minimum number of event lines, even if there is no room for them.
EVENTS_LEAST = 3
GOOD, BAD, NOTE, FAINT, TITLE = "green", "bold red", "magenta", "dim", "bold"
_STATES = {"serving": GOOD, "running": GOOD, "draining": NOTE}
_KINDS = {
    "joined": GOOD,
    "epoch": GOOD,
    "lost": BAD,
    "failed": BAD,
    "draining": NOTE,
    "ended": NOTE,
    SILENT: BAD,
    BACK: GOOD,
}
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def render(console: Console, view: View, *, height: int | None = None, hint: str = "") -> RenderableType:
    """Return the contents of the screen.

    Args:
        console: its width determines the columns.
        view: the view to show.
        height: lines of the screen; None for all events.
        hint: hint about keys on the first line.
    """
    is_wide = console.width >= WIDE
    upper = Group(
        _heading(view, hint), _hosts(view.hosts, is_wide=is_wide), *_jobs(view.jobs, is_wide=is_wide)
    )
    events = list(view.events)
    if height is not None:
        # Two lines are for the blank line and the heading of the events.
        room = height - len(console.render_lines(upper)) - 2
        events = events[-max(EVENTS_LEAST, room) :]
    return Group(upper, *_events(events))


def rate_text(rate: float | None) -> str:
    """Return bytes per second with three digits, in powers of 1000, or a hyphen if unknown."""
    if rate is None:
        return "-"
    for size, unit in _UNITS:
        if rate >= size:
            return f"{_digits(rate / size)} {unit}"
    return f"{rate:.0f} B"


def _digits(value: float) -> str:
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _count_text(value: float | None) -> str:
    return "-" if value is None else _digits(value)


def _percent(cores: float | None) -> str:
    return "-" if cores is None else f"{cores * 100:.0f} %"


def _heading(view: View, hint: str) -> Text:
    processes = sum(host.processes for host in view.hosts)
    clock = time.strftime("%H:%M:%S", time.localtime(view.at_s))
    text = Text(overflow="ellipsis", no_wrap=True)
    text.append("reducer top", style=TITLE)
    text.append(f"  hosts: {len(view.hosts)}, processes: {processes}, jobs: {len(view.jobs)}  {clock}")
    return text.append(f"  {hint}", style=FAINT) if hint else text


def _table(columns: Sequence[Column]) -> Table:
    return Table(*columns, box=None, padding=(0, 1, 0, 0), header_style="underline")


def _number(title: str) -> Column:
    return Column(title, justify="right", no_wrap=True)


def _word(title: str) -> Column:
    return Column(title, no_wrap=True)


def _name(title: str) -> Column:
    return Column(title, overflow="fold")


def _hosts(hosts: Sequence[HostRow], *, is_wide: bool) -> Table:
    columns = [_name("reducer"), _word("state"), _number("cpu"), _number("reserved")]
    columns += [_number("streams"), _number("in/s"), _number("out/s")]
    if is_wide:
        columns += [
            _number("of"),
            _number("resident"),
            _number("processes"),
            _number("busiest"),
            _number("up"),
        ]
        columns.append(_name("why"))
    table = _table(columns)
    for host in hosts:
        style = _STATES.get(host.state, BAD)
        cells: list[str | Text] = [host.address, Text(host.state, style=style)]
        if host.processes == 1 and host.reason:  # no process answers
            cells += [""] * 5
            more = ["", "", "", "", ""]
        else:
            cells += [_percent(host.cores), size_text(host.reserved_bytes), str(host.streams)]
            cells += [rate_text(host.received_per_s), rate_text(host.sent_per_s)]
            more = [size_text(host.limit_bytes), size_text(host.resident_bytes), str(host.processes)]
            more += [_percent(host.busiest), duration_text(host.uptime_s)]
        table.add_row(*cells, *([*more, host.reason] if is_wide else []))
    return table


def _jobs(jobs: Sequence[JobRow], *, is_wide: bool) -> list[RenderableType]:
    if not jobs:
        return [Text(), Text("no jobs", style=FAINT)]
    columns = [_name("job"), _number("ranks"), _number("epoch"), _number("sums/s"), _number("in/s")]
    columns += [_number("p50/p99 ms"), _word("waits for"), _word("plane")]
    if is_wide:
        columns += [_word("state"), _number("out/s"), _number("for it"), _name("host")]
    table = _table(columns)
    for job in jobs:
        table.add_row(*_job_cells(job, is_wide=is_wide))
    return [Text(), table]


def _job_cells(job: JobRow, *, is_wide: bool) -> list[str | Text]:
    rank = job.waited_for
    style = BAD if rank is not None and rank.is_straggler else ""
    waits_for = Text("-" if rank is None else f"{rank.rank}: {rank.share:.0%}", style=style)
    if (now := job.waits_now) is not None:
        waits_for = Text(f"{now.ranks}: {duration_text(now.seconds)}", style=BAD)
    elif job.absent:
        waits_for = Text(f"no {job.absent}", style=BAD)
    state = Text(job.state, style=_STATES.get(job.state, BAD))
    cells: list[str | Text] = [
        job.title,
        job.ranks,
        str(job.epoch),
        _count_text(job.collectives_per_s),
        rate_text(job.received_per_s),
        f"{_digits(job.wait_p50_s * 1e3)}/{_digits(job.wait_p99_s * 1e3)}",
        waits_for if is_wide or job.absent or job.state in ("running", "waiting") else state,
        job.plane,
    ]
    if is_wide:
        wait = "-" if rank is None else f"{_digits(rank.wait_s * 1e3)} ms"
        cells += [state, rate_text(job.sent_per_s), wait, "" if rank is None else rank.host]
    return cells


def _events(events: Sequence[Entry]) -> list[Text]:
    if not events:
        return []
    return [Text(), Text("events", style="underline"), *map(_event, events)]


def _event(entry: Entry) -> Text:
    text = Text(overflow="ellipsis", no_wrap=True)
    text.append(time.strftime("%H:%M:%S ", time.localtime(entry.at_s)), style=FAINT)
    text.append(f"{entry.kind:<9}", style=_KINDS.get(entry.kind, ""))
    text.append(f"{entry.job}: {entry.text}" if entry.job else entry.text)
    return text.append(f"  {entry.where}", style=FAINT)

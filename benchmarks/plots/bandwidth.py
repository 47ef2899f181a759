"""Figures of algbw by size of the tensor and by the number of workers, with the bounds of links and of a ring.

With reducers, every byte crosses a worker's link once in each direction, and reducers share the
sums evenly, so algbw <= B min(1, k/n) on links of rate B. A ring sends each byte 2(n-1)/n times, so
algbw <= B n/(2(n-1)).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.method.records import Quartiles, Record
from benchmarks.method.table import size_text
from benchmarks.plots.style import GREEN, GREY, Look, legend_below, log_scale, look, panels, size_axis, styled

ALL_REDUCE = "all-reduce"
#: Mbit/s in a GB/s.
MBIT = 8e3


def by_size_on_loopback(rows: Sequence[Record]) -> Figure | None:
    """Return a panel for each shape on loopback that has several sizes."""
    return _by_size([row for row in rows if row.network is None])


def by_size_on_links(rows: Sequence[Record]) -> Figure | None:
    """Return a panel for each shape on shaped links that has several sizes."""
    return _by_size([row for row in rows if row.network is not None])


def by_workers(rows: Sequence[Record]) -> Figure | None:
    """Return a panel for each kind of shaped links, of the largest size, with as many reducers as workers."""
    square = [row for row in rows if row.network and row.what == ALL_REDUCE and row.workers == row.reducers]
    cases = [largest(case) for case in grouped(square, lambda row: (row.network, row.device))]
    cases = [case for case in cases if len(case) > 1]
    if not cases:
        return None
    with styled():
        figure, grid = panels(len(cases))
        for axes, case in zip(grid, cases, strict=True):
            _lines(axes, case, lambda row: row.workers, MBIT)
            _bounds(axes, [(row.workers, row) for row in case])
            axes.set_xticks([row.workers for row in case])
            axes.set_xlabel("workers n, with k = n reducers")
            axes.set_ylim(bottom=0)
            axes.set_ylabel("algbw (Mbit/s = 1e6 bits/s)")
            axes.set_title(f"{case[0].place}\n{size_text(case[0].size_bytes)} (MiB = 1024 KiB)")
        legend_below(figure)
    return figure


def largest(rows: Sequence[Record]) -> list[Record]:
    """Return the rows of the largest size, by the number of workers."""
    most = max(row.size_bytes for row in rows)
    return sorted((row for row in rows if row.size_bytes == most), key=lambda row: row.workers)


def _by_size(rows: Sequence[Record]) -> Figure | None:
    reduced = [row for row in rows if row.what == ALL_REDUCE]
    cases = grouped(reduced, lambda row: (row.network, row.device, row.workers, row.reducers))
    cases = [case for case in cases if len({row.size_bytes for row in case}) > 1]
    if not cases:
        return None
    with styled():
        figure, grid = panels(len(cases))
        for axes, case in zip(grid, cases, strict=True):
            _size_panel(axes, case)
        legend_below(figure)
    return figure


def _size_panel(axes: Axes, case: Sequence[Record]) -> None:
    is_shaped = case[0].network is not None
    _lines(axes, case, lambda row: row.size_bytes, MBIT if is_shaped else 1.0)
    sizes = sorted({row.size_bytes for row in case})
    if is_shaped:
        _bounds(axes, [(size, case[0]) for size in sizes])
    size_axis(axes, sizes)
    log_scale(axes)
    axes.set_ylabel("algbw (Mbit/s = 1e6 bits/s)" if is_shaped else "algbw (GB/s = 1e9 bytes/s)")
    axes.set_title(f"{case[0].place}\n{case[0].shape}")


def _lines(axes: Axes, case: Sequence[Record], x: Callable[[Record], int], unit: float) -> None:
    """Draw a line for each contender, with a band between the quartiles."""
    for name, appearance in contenders(case).items():
        ran = sorted((row for row in case if name in row.contenders), key=x)
        at = [x(row) for row in ran]
        algbw = [Quartiles(*(unit * value for value in row.contenders[name].algbw_gb_s)) for row in ran]
        axes.fill_between(
            at,
            [q.low for q in algbw],
            [q.high for q in algbw],
            color=appearance.colour,
            alpha=0.18,
            linewidth=0,
        )
        axes.plot(
            at,
            [q.median for q in algbw],
            color=appearance.colour,
            marker=appearance.marker,
            label=appearance.label,
        )


def contenders(case: Sequence[Record]) -> dict[str, Look]:
    """Return the looks of all contenders of the rows, in the order of the file."""
    return {name: look(name, row.ring) for row in case for name in row.contenders}


def _bounds(axes: Axes, points: Sequence[tuple[int, Record]]) -> None:
    """Draw the bounds of rows on shaped links, each at its x."""
    rates = {row.network.rate_mbit for _, row in points if row.network is not None}
    rate = max(rates)  # all rows have the same
    at = [x for x, _ in points]
    ours = [rate * min(1, row.reducers / row.workers) for _, row in points]
    ring = [rate * row.workers / (2 * (row.workers - 1)) for _, row in points if row.workers > 1]
    label = "B" if min(ours) == rate else "B k/n"
    axes.plot(at, ours, "--", color="#333333", linewidth=1, label=f"bound of reducers, {label}")
    if len(ring) == len(at):
        axes.plot(at, ring, "-.", color=GREEN, linewidth=1, label="bound of a ring, B n/(2(n-1))")
    goodputs = [row.goodput_mbit for _, row in points if row.goodput_mbit is not None]
    if goodputs:
        axes.axhline(max(goodputs), color=GREY, linestyle=":", linewidth=1.4, label="iperf3, one TCP stream")


def grouped(rows: Sequence[Record], key: Callable[[Record], Hashable]) -> list[list[Record]]:
    """Return groups of the rows that have the same key, in the order of the file."""
    groups: dict[Hashable, list[Record]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())

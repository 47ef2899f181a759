"""The content of results/report.html: tables and text beside the figures. README.md defines the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.gil import rows as gil_rows
from benchmarks.lab import environment
from benchmarks.method.records import Quartiles, Record
from benchmarks.method.table import size_text
from benchmarks.plots.page import Lead, Picture, Section, Table, described, render
from benchmarks.plots.style import look
from benchmarks.plots.summary import sentence
from benchmarks.soak import flatness

TITLE = "Reduction Server for PyTorch: benchmarks"

METHOD = [
    "Contenders take turns on the same processes: A B C A B C. Other load on the machine slows all of them. Ratios "
    "are medians over neighbouring turns, with their quartiles.",
    "All ranks sleep until an agreed reading of the clock that they share. A turn ends when the slowest rank has its "
    "last result.",
    "Every result of every turn is compared as a whole with the known sum, outside the timed region. Inputs are "
    "integers, so that every order of adding gives the same exact sum. Training steps have real numbers: ours must "
    "have the bits of the sum in rank order, a ring's may differ by the roundings.",
    "Every rank has one torch thread. All processes share the cores of the machine. On loopback CPU is the "
    "bottleneck, so the figures say how much work each contender makes, not which is faster on a network.",
    "On shaped links every process has a network namespace of its own, on a link of the stated rate each way, with "
    "queues of the stated length; iperf3 says what one TCP stream carries there.",
    "algbw is the size of the tensor by the time of one collective. 1 GB = 1e9 bytes, 1 Mbit = 1e6 bits, "
    "1 KiB = 1024 bytes, 1 MiB = 1024 KiB. Quartiles stand in brackets.",
]


def page(
    document: dict[str, Any],
    rows: Sequence[Record],
    pictures: Sequence[Picture],
    wires: Sequence[Picture] = (),
    gil: tuple[dict[str, Any], Sequence[Picture]] | None = None,
    soak: tuple[dict[str, Any], Sequence[Picture]] | None = None,
) -> str:
    """Return the page of a run.

    Args:
        document: the run's.
        rows: of the document.
        pictures: of the run; if a ring was measured, the first one shows the result.
        wires: of the benchmarks of wire dtypes.
        gil: document and figures of the GIL benchmark.
        soak: document and figures of the soak.
    """
    links = [row for row in rows if row.network is not None]
    loopback = [row for row in rows if row.network is None]
    growth = document.get("scaling", [])
    text = sentence(rows)
    sections = [
        Section("Result", [Lead(text), *pictures[:1]] if text else []),
        Section("Figures", list(pictures[1:] if text else pictures)),
        Section("Shaped links", [_table(links)] if links else []),
        Section("Growth with the workers", [_growth(growth)] if growth else []),
        Section("Loopback", [_table(loopback)] if loopback else []),
        Section("Fewer bytes", list(wires)),
        Section("The GIL", [] if gil is None else [_gil_text(gil[0]), *gil[1], _gil(gil[0])]),
        Section("Soak", [] if soak is None else [*soak[1], *_soak(soak[0])]),
        Section("How it was measured", [METHOD]),
        Section("Environment", [described(document["environment"])]),
    ]
    return render(TITLE, environment.summary(document["environment"]), sections)


_HEAD = ["load", "size", "n", "k", "link", "contender", "GB/s (quartiles)", "Mbit/s", "x ring (quartiles)"]
_HEAD += ["of iperf3", "ms per turn (quartiles)", "p50 ms", "1/s", "tx", "rx", "drops", "retr."]
_HEAD += ["worker CPU s/GB", "reducers CPU s/GB"]


def _table(rows: Sequence[Record]) -> Table:
    return Table(_HEAD, [_cells(row, name) for row in rows for name in row.contenders])


def _cells(row: Record, name: str) -> list[str]:
    contender = row.contenders[name]
    plain, wire, ratio = contender.plain, contender.plain["wire"], contender.ratio
    link = "loopback" if row.network is None else row.network.name
    cells = [row.what, size_text(row.size_bytes), str(row.workers), str(row.reducers), link]
    cells += [
        look(name, row.ring).label,
        _spread(contender.algbw_gb_s),
        f"{contender.algbw_gb_s.median * 8e3:.0f}",
    ]
    cells += ["" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"]
    cells += ["" if plain["goodput_fraction"] is None else f"{plain['goodput_fraction']:.1%}"]
    cells += [_spread(Quartiles(*(1e3 * seconds for seconds in contender.turn_s)))]
    cells += [f"{1e3 * plain['p50_s']:.2f}", f"{plain['per_s']:#.3g}"]
    if wire is None:
        cells += [""] * 4
    else:
        cells += [f"{wire['worker_tx']:.2f}", f"{wire['worker_rx']:.2f}"]
        cells += [str(wire["dropped_packets"]), str(wire["retransmitted_segments"])]
    reducers = plain["reducer_cpu_s_per_gb"]
    return [*cells, f"{plain['worker_cpu_s_per_gb']:.2f}", "" if reducers is None else f"{reducers:.2f}"]


def _spread(value: Quartiles) -> str:
    return f"{value.median:.3g} ({value.low:.3g}-{value.high:.3g})"


def _growth(steps: Sequence[dict[str, Any]]) -> Table:
    head = ["time(n) / time(2), k = n", "size", "link", "reducers, ideal", "ring, ideal", "measured"]
    return Table(
        head,
        [
            [
                f"n = {step['workers']}",
                size_text(step["size_bytes"]),
                f"{step['network']['rate_mbit']:g} Mbit/s",
                "1.00",
                f"{2 * (step['workers'] - 1) / step['workers']:.2f}",
                ", ".join(f"{look(name).label} {factor:.2f}" for name, factor in step["contenders"].items()),
            ]
            for step in steps
        ],
    )


def _gil_text(document: dict[str, Any]) -> str:
    settings = document["settings"]
    return (
        f"The main thread of every rank computes in Python while all-reduces of {size_text(settings['size_bytes'])} "
        f"are in flight, {settings['depth']} at once; {settings['workers']} workers, {settings['reducers']} reducers. "
        f"Measured {document['environment']['date']}, commit {document['environment']['commit']}, load "
        f"{document['environment']['load_average'][0]:.2f}."
    )


def _gil(document: dict[str, Any]) -> Table:
    return Table(gil_rows.HEAD, [gil_rows.cells(row) for row in document["rows"]])


def _soak(document: dict[str, Any]) -> list[str | Table]:
    parts: list[str | Table] = []
    for course in document["courses"]:
        outcome = course["failure"] or "all sums right"
        parts.append(
            f"{course['transport']}: {course['collectives']} all-reduces, {course['tensor_bytes'] / 1e9:.2f} GB per "
            f"rank, {course['jobs']} jobs, {course['seconds']:.0f} s; {outcome}."
        )
        if course["verdicts"]:
            verdicts = [flatness.Verdict(**verdict) for verdict in course["verdicts"]]
            parts.append(Table(flatness.HEAD, [flatness.cells(verdict) for verdict in verdicts]))
    return parts

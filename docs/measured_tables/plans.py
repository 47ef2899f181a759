"""What `reducer plan` predicts, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator

from measured_results import figures, load, number

from benchmarks.method.table import size_text
from benchmarks.simulation.planned import planned
from measured_tables.parts import contender, provenance, table

_NAMES = ("few-reducers", "sizes-4", "vgg16-4", "vgg16-8", "resnet50-4", "resnet50-8")
#: Smaller sums cost more time for their messages than predicted.
_LEAST_BYTES = 4 << 20


def plans() -> Iterator[str]:
    """Yield all-reduces and training steps on shaped links, predicted and measured, and their speed-up."""
    head = ["n, k", "link", "what", "ring: predicted, measured, ms", "ours: predicted, measured, ms"]
    cells = []
    names = [f"shaped/{name}" for name in _NAMES]
    for row in (row for name in names for row in load(name)["rows"]):
        if row["size_bytes"] < _LEAST_BYTES:
            continue
        ours = contender(row, "colocated")["p50_s"] or contender(row, "tcp")["p50_s"]
        ring = contender(row, "ring")["p50_s"]
        steps = planned(row)
        speedups = steps[0].total_s / steps[1].total_s, ring / ours
        cells.append(
            [
                f"{row['workers']}, {row['reducers']}",
                f"{row['network']['rate_mbit']:g} Mbit/s",
                f"{row['what']}, {size_text(row['size_bytes'])}",
                *(
                    f"{figures(step.total_s, 1e3)}, {figures(time, 1e3)}"
                    for step, time in zip(steps, (ring, ours), strict=True)
                ),
                ", ".join(map(number, speedups)),
            ]
        )
    yield from table([*head, "times as fast: predicted, measured"], cells)
    yield from provenance(*names)

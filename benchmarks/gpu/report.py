"""The report of gpu/training.py: its rows, its table, and the check of the weights."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.gpu.load import GLOO, NCCL, NOOP, OURS
from benchmarks.gpu.nccl_log import NcclLog
from benchmarks.lab.traffic import Link
from benchmarks.loads.models import RECIPES, TINY, gradient_bytes
from benchmarks.method.experiment import Cell
from benchmarks.method.paired import Measurement
from benchmarks.method.table import spread

LABELS = {OURS: "ours, TCP", GLOO: "DDP, Gloo", NCCL: "DDP, NCCL ring", NOOP: "no communication"}
#: Maximum distance between our weights and those of another contender, as a multiple of the distance
#: that training has moved them. With a sum instead of an average it would be n - 1, and without
#: averaging about sqrt(n - 1). Rounding differences of kernels are far below this limit.
APART_MAX = 0.05


@dataclass(slots=True)
class Found:
    """The outcome of a comparison."""

    measured: dict[str, Measurement]
    #: Share of each contender's steps in which the GPU was idle, and share with an NCCL kernel; None
    #: without a GPU.
    shares: dict[str, tuple[float | None, float | None]]
    #: Hashes of the weights by contender, in rank order.
    digests: dict[str, list[str]]
    #: Maximum distance over all ranks of our weights from those of each other contender.
    apart: dict[str, float]
    nccl: NcclLog | None = None
    link: Link | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def doubts(self) -> list[str]:
        """Reasons why NCCL's time is not that of a ring over the links."""
        return [] if self.nccl is None else self.nccl.problems(len(self.digests[NCCL]))

    def exposed_s(self, name: str) -> float | None:
        """Return the median over the rounds of a step's time less that of a step without communication."""
        if NOOP not in self.measured or name == NOOP:
            return None
        both = zip(self.measured[name].turns, self.measured[NOOP].turns, strict=True)
        return statistics.median(own - noop for own, noop in both)


def problems(digests: Mapping[str, Sequence[str]], apart: Mapping[str, float]) -> list[str]:
    """Return a message for each error of the weights."""
    errors = []
    for name, of_ranks in digests.items():
        if len(set(of_ranks)) > 1:
            named = ", ".join(f"rank {rank} {digest[:8]}" for rank, digest in enumerate(of_ranks))
            errors.append(f"{name}: the weights differ between ranks: {named}")
    for name, distance in apart.items():
        if not distance <= APART_MAX:
            errors.append(
                f"our weights are {distance:.3g} of their way from those of {name}, {APART_MAX} is allowed"
            )
    return errors


def rows_of(found: Found) -> list[dict[str, Any]]:
    """Return a row for each contender, with the columns of README.md."""
    rows = []
    for name, measurement in found.measured.items():
        is_other = name != OURS and OURS in found.measured
        idle, waits = found.shares[name]
        rows.append(
            {
                "contender": name,
                "turns": measurement.turns,
                "turn_s": measurement.turn_s,
                "by_ours": found.measured[OURS].times_as_fast_as(measurement) if is_other else None,
                "exposed_s": found.exposed_s(name),
                "gpu_idle": idle,
                "nccl_waits": waits,
                "worker_cpu_s": measurement.worker_cpu_s,
                "reducer_cpu_s": measurement.reducer_cpu_s,
                "traffic": asdict(measurement.traffic),
                "doubts": found.doubts if name == NCCL else [],
            }
        )
    return rows


COLUMNS: dict[str, Cell] = {
    "": lambda row: LABELS[row["contender"]] + (" (*)" if row["doubts"] else ""),
    "steps/s": lambda row: f"{1 / row['turn_s']:#.3g}",
    "ms": lambda row: f"{1e3 * row['turn_s']:.1f}",
    "its time / ours (quartiles)": lambda row: spread(row["by_ours"]),
    "exposed ms": lambda row: "" if row["exposed_s"] is None else f"{1e3 * row['exposed_s']:.1f}",
    "GPU idle": lambda row: "no GPU" if row["gpu_idle"] is None else f"{row['gpu_idle']:.1%}",
    "NCCL waits": lambda row: f"{row['nccl_waits']:.1%}" if row["nccl_waits"] else "",
}


def notes(found: Found) -> list[str]:
    """Return the notes on NCCL below the table."""
    if found.nccl is None:
        return []
    return ["", found.nccl.summary(), *(f"(*) no ring over the links: {doubt}" for doubt in found.doubts)]


def bytes_of(given: argparse.Namespace) -> int:
    """Return the bytes of all gradients of a step."""
    return gradient_bytes((TINY if given.tiny else RECIPES)[given.model])

"""The report of gpu/training.py: the table, the JSON, and whether the weights are right."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.load import GLOO, NCCL, NOOP, OURS
from benchmarks.gpu.nccl_log import NcclLog
from benchmarks.lab.traffic import Link
from benchmarks.loads.models import RECIPES, TINY, gradient_bytes
from benchmarks.method.paired import Measurement
from benchmarks.method.table import markdown

#: Version of the JSON; raised when a field changes its meaning.
FORMAT = 1
LABELS = {OURS: "ours, TCP", GLOO: "DDP, Gloo", NCCL: "DDP, NCCL ring", NOOP: "no communication"}
#: Largest distance between our weights and those of another contender, as a multiple of the
#: distance that training has moved them. With a sum instead of an average it would be n - 1, and
#: without averaging about sqrt(n - 1). Different roundings of kernels are far below this limit.
APART_MAX = 0.05
HEAD = (
    "",
    "steps/s",
    "ms",
    "its time / ours (quartiles)",
    "exposed ms",
    "GPU idle",
    "NCCL waits",
)


@dataclass(slots=True)
class Found:
    """The outcome of a comparison."""

    measured: dict[str, Measurement]
    #: Share of each contender's steps in which the GPU was idle, and share with a kernel of NCCL;
    #: None without a GPU.
    shares: dict[str, tuple[float | None, float | None]]
    #: Hashes of the weights by contender, in rank order.
    digests: dict[str, list[str]]
    #: Distance of our weights from those of each other contender, the largest of all ranks.
    apart: dict[str, float]
    nccl: NcclLog | None = None
    link: Link | None = None
    problems: list[str] = field(default_factory=list)

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


def lines(found: Found) -> list[str]:
    """Return the table, and a line about NCCL."""
    doubts = [] if found.nccl is None else found.nccl.problems(len(found.digests[NCCL]))
    cells = []
    for name, measurement in found.measured.items():
        is_other = name != OURS and OURS in found.measured
        quartiles = found.measured[OURS].times_as_fast_as(measurement) if is_other else None
        exposed_s, (idle, waits) = found.exposed_s(name), found.shares[name]
        cells.append(
            [
                LABELS[name] + (" (*)" if name == NCCL and doubts else ""),
                f"{1 / measurement.turn_s:#.3g}",
                f"{1e3 * measurement.turn_s:.1f}",
                "" if quartiles is None else "{1:.2f} ({0:.2f}-{2:.2f})".format(*quartiles),
                "" if exposed_s is None else f"{1e3 * exposed_s:.1f}",
                "no GPU" if idle is None else f"{idle:.1%}",
                "" if not waits else f"{waits:.1%}",
            ]
        )
    notes = [] if found.nccl is None else ["", found.nccl.summary()]
    return [*markdown(HEAD, cells), *notes, *(f"(*) no ring over the links: {doubt}" for doubt in doubts)]


def document(given: argparse.Namespace, found: Found, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report as JSON."""
    contenders = {
        name: {
            "turns": measurement.turns,
            "exposed_s": found.exposed_s(name),
            "gpu_idle": found.shares[name][0],
            "nccl_waits": found.shares[name][1],
            "worker_cpu_s": measurement.worker_cpu_s,
            "reducer_cpu_s": measurement.reducer_cpu_s,
            "traffic": asdict(measurement.traffic),
        }
        for name, measurement in found.measured.items()
    }
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
    return {
        "format": FORMAT,
        "environment": described,
        "settings": settings,
        "gradient_bytes": bytes_of(given),
        "network": "loopback" if found.link is None else asdict(found.link),
        "contenders": contenders,
        "weights": found.digests,
        "apart": found.apart,
        "nccl": None if found.nccl is None else found.nccl.json(),
        "problems": found.problems,
    }


def bytes_of(given: argparse.Namespace) -> int:
    """Return the bytes of all gradients of a step."""
    return gradient_bytes((TINY if given.tiny else RECIPES)[given.model])

"""Histories of real runs, with each worker's contributions and results. `python -m tests.history FILE` judges them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from worker_plugin import ReductionState

#: The tensors of `History.reduce`: dtype, operation, elements.
SUMS = (
    (torch.float32, dist.ReduceOp.SUM, 250),
    (torch.bfloat16, dist.ReduceOp.AVG, 100),
    (torch.int64, dist.ReduceOp.MAX, 3),
)


class History:
    """The records of one process, each a line of JSON.

    Args:
        path: path of a new file.
        who: fields of all records.
    """

    def __init__(self, path: Path, **who: object) -> None:
        self._file = path.open("w", buffering=1)
        self._who = who

    def record(self, what: str, **fields: object) -> None:
        """Write a record."""
        line = {"what": what, "t": time.monotonic()} | self._who | fields
        self._file.write(json.dumps(line) + "\n")

    def reduce(
        self, state: ReductionState, generator: torch.Generator, name: str, first: int = 0, **where: int
    ) -> None:
        """Reduce random tensors concurrently. Their records have the fields `where`, and numbers from `first`."""
        sums = []
        for number, (dtype, op, numel) in enumerate(SUMS, first):
            tensor = (1000 * torch.randn(numel, generator=generator)).to(dtype)
            key = where | {name: number}
            kind = str(dtype).removeprefix("torch.").upper()
            self.record("issued", op=op.name, dtype=kind, contribution=_hex(tensor), **key)
            sums.append((key, tensor, state.all_reduce(tensor, op)))
        for key, tensor, future in sums:
            future.wait()
            self.record("result", result=_hex(tensor), **key)


def merge(path: Path, parts: Iterable[Path], others: Iterable[Mapping[str, Any]]) -> None:
    """Write the records of all processes, and some others, to one file in chronological order."""
    records = list(others)
    for part in parts:
        # The last line of a process that was killed may be cut off.
        records += [json.loads(line) for line in part.read_text().splitlines() if line.endswith("}")]
    records.sort(key=lambda record: record["t"])
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _hex(tensor: torch.Tensor) -> str:
    return tensor.view(torch.uint8).numpy().tobytes().hex()

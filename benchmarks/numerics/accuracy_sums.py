"""What accuracy.py compares: gradients, our sum of them with the product's own code, and the sum of torch's hooks.

torch's hooks (`torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py`) cast to 16 bits, divide by n in 16 bits,
and let Gloo add in 16 bits. Gloo adds around a ring (`gloo/allreduce.cc`, `ring`): the tensor is cut into 2n segments
or a multiple of n, n chunks of as many segments each; chunk c begins on rank c - 1, goes to c - 2, c - 3, ..., and is
complete on rank c. Each of these n - 1 hops adds two 16-bit numbers in float32 and rounds to 16 bits. Then the chunks
go around once more, unchanged. `ring` does exactly that; accuracy.py compares it with Gloo's own for n up to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from reduction.codecs import CODECS
from reduction.model import DType, ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)

from benchmarks.lab.ranks import Rank
from benchmarks.loads.codecs import contribution, delivered, encoding_of, fold
from worker_plugin.tensors.encoding import BlockEncoding
from worker_plugin.tensors.wire_dtype import parse

Values = NDArray[np.float32]

#: Ours, by the names of `wire_dtype`; "fp32" is none.
WIRES = ("fp32", "bf16", "fp16", "fp8", "int8", "topk")
#: torch's, by the width they add in; "fp32" is DDP without compression.
HOOKS = {"fp32": allreduce_hook, "bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: gloo/allreduce.h, `kMaxSegmentSize`: bytes.
SEGMENT_BYTES = 1 << 20

#: Steps of plain SGD on batches of all ranks before the gradients are taken: neither the first nor a converged one.
_TRAINED_STEPS, _LEARNING_RATE = 20, 0.05
#: Degrees of freedom of Student's t. The variance is infinite at 2; gradients were measured to have tails as heavy
#: (Simsekli et al., "A Tail-Index Analysis of Stochastic Gradient Noise in Deep Neural Networks", 2019).
_FREEDOM = 2.0


class Gradients(NamedTuple):
    """One gradient for each rank, as DDP would hand them over in one bucket."""

    #: A row per rank.
    values: Values
    #: Elements of each parameter.
    sizes: tuple[int, ...]


class Errors(NamedTuple):
    """Absolute error of all elements, over the largest magnitude of the true average."""

    worst: float
    mean: float

    @classmethod
    def of(cls, result: Values, true: NDArray[np.float64]) -> Errors:
        """Compare an average with the true one."""
        error = np.abs(result.astype(np.float64) - true)
        largest = np.abs(true).max()
        return cls(float(error.max() / largest), float(error.mean() / largest))

    def over(self, other: Errors) -> Errors:
        """Return both as a share of another's."""
        return Errors(
            *(mine / theirs if theirs else float("nan") for mine, theirs in zip(self, other, strict=True))
        )


def learned(name: str, count: int) -> Gradients:
    """Return the gradients of one of the models of convergence.py, each on a batch of its own."""
    from benchmarks.numerics.convergence_load import LEARNERS  # not above: every rank imports this module

    learner = LEARNERS[name]()
    torch.manual_seed(0)
    model = learner.model()
    for step in range(_TRAINED_STEPS):
        model.zero_grad()
        learner.loss(model, step, 0, 1).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= _LEARNING_RATE * parameter.grad  # type: ignore[operator, misc]
    rows = []
    for rank in range(count):
        model.zero_grad()
        learner.loss(model, _TRAINED_STEPS, rank, count).backward()
        rows.append(np.concatenate([_flat(parameter.grad) for parameter in model.parameters()]))
    return Gradients(np.stack(rows), tuple(parameter.numel() for parameter in model.parameters()))


def heavy_tailed(count: int, numel: int = 1 << 17) -> Gradients:
    """Return Student's t around a common direction that is as heavy-tailed, all times 1e-3."""
    random = np.random.default_rng(count)
    common = random.standard_t(_FREEDOM, numel)
    values = 1e-3 * (common + random.standard_t(_FREEDOM, (count, numel)))
    return Gradients(values.astype(np.float32), (numel,))


def normal(count: int, numel: int = 1 << 17) -> Gradients:
    """Return normal numbers that have nothing in common, times 1e-3: what textbooks assume."""
    values = 1e-3 * np.random.default_rng(count).standard_normal((count, numel))
    return Gradients(values.astype(np.float32), (numel,))


#: By name: gradients of so many ranks.
SOURCES: dict[str, Callable[[int], Gradients]] = {
    "digits": partial(learned, "digits"),
    "transformer": partial(learned, "transformer"),
    "normal": normal,
    "heavy": heavy_tailed,
}


def _flat(gradient: torch.Tensor | None) -> Values:
    assert gradient is not None
    return gradient.detach().reshape(-1).numpy().copy()


@dataclass(frozen=True, slots=True)
class Summed:
    """What a wire dtype makes of gradients."""

    result: Values
    #: The sum of what the contributions say, without any error of adding or of the result.
    encoded_sum: NDArray[np.float64]


def ours(gradients: Gradients, wire: str, op: ReduceOp) -> Summed:
    """Sum as the ranks and a reducer do: encode on each, fold in rank order, scale, round once, decode.

    Without error feedback, which would make up for the encoding in later steps. How many reducers there are, and the
    size of the chunks, changes no bit.
    """
    found = None if wire == "fp32" else parse(wire)
    rows = (torch.from_numpy(row.copy()) for row in gradients.values)
    encodings = [encoding_of(row, found, gradients.sizes) for row in rows]
    dtype = DType.FLOAT32 if found is None else found.dtype
    codec = CODECS[dtype]
    numel = encodings[0].numel if isinstance(encodings[0], BlockEncoding) else gradients.values.shape[1]
    layout_bytes = numel * dtype.itemsize
    payloads = [contribution(encoding, layout_bytes) for encoding in encodings]
    decoded = np.empty(numel, np.float32)
    encoded_sum = np.zeros(gradients.values.shape[1])
    for payload in payloads:
        codec.start(decoded, payload)
        encoded_sum += _without_filling(decoded, gradients.sizes, codec.block)
    result = delivered(encodings[0], layout_bytes, fold(payloads, dtype, layout_bytes, op))
    return Summed(result.numpy(), encoded_sum)


def _without_filling(values: Values, sizes: Sequence[int], block: int) -> Values:
    """Leave out the zeros that fill up each parameter's last block."""
    if block == 1:
        return values
    kept, offset = [], 0
    for size in sizes:
        kept.append(values[offset : offset + size])
        offset += -(-size // block) * block
    return np.concatenate(kept)


def rounded_fold(gradients: Gradients, op: ReduceOp) -> Values:
    """Return what bf16 promises, computed by torch alone: the fold in float32 and rank order, rounded once."""
    rows = torch.from_numpy(gradients.values).to(torch.bfloat16)
    total = rows[0].float()
    for row in rows[1:]:
        total = total + row.float()
    if op is ReduceOp.AVG:
        total = total / len(rows)
    return total.to(torch.bfloat16).float().numpy()


def ring(parts: torch.Tensor) -> torch.Tensor:
    """Add the rows in their own dtype in the order of Gloo's ring; see above."""
    count, numel = parts.shape
    if count == 1:
        return parts[0].clone()
    itemsize = parts.element_size()
    segments = max(-(-numel * itemsize // SEGMENT_BYTES), 2 * count)
    segments = -(-segments // count) * count
    chunk = -(-numel // segments) * (segments // count)
    result = torch.empty_like(parts[0])
    for index in range(count):
        at = slice(index * chunk, (index + 1) * chunk)
        total = parts[index - 1][at].clone()
        for hop in range(2, count + 1):
            total += parts[(index - hop) % count][at]
        result[at] = total
    return result


def torch_average(gradients: Gradients, width: str) -> Values:
    """Return what torch's hook makes of them, over the ring above."""
    rows = torch.from_numpy(gradients.values).to(TORCH[width], copy=True)
    return ring(rows.div_(len(rows))).float().numpy()


class _Bucket:
    """As much of a `GradBucket` as the hooks look at; torch lets nobody make one."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def buffer(self) -> torch.Tensor:
        """Return the flat gradient."""
        return self._buffer


class RealRing:
    """torch's own hook over Gloo, run by every rank; see `benchmarks.lab.ranks`."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def average(self, path: Path, width: str) -> Values | None:
        """Average the rows of a file among as many ranks; rank 0 returns the average."""
        values = np.load(path, mmap_mode="r")
        group: Any = dist.new_group(list(range(len(values))))
        if self._rank.rank >= len(values):
            return None
        bucket: Any = _Bucket(torch.from_numpy(values[self._rank.rank].copy()))
        result = HOOKS[width](group, bucket).wait()
        dist.destroy_process_group(group)
        return result.numpy() if self._rank.rank == 0 else None

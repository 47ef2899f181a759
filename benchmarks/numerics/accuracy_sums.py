"""The sums that accuracy.py compares: ours from the product's own code, and those of torch's hooks.

torch's hooks (`torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py`) cast to 16 bits,
divide by n in 16 bits, and let Gloo add in 16 bits. Gloo adds around a ring (`gloo/allreduce.cc`,
`ring`). It cuts the tensor into n chunks with the same number of segments, at least two. Chunk c
begins on rank c - 1, goes to ranks c - 2, c - 3, ..., and is complete on rank c. Each of these n - 1
hops adds two 16-bit numbers in float32 and rounds to 16 bits. Then the chunks go around a second time,
unchanged. The function `ring` computes the same sums. accuracy.py compares it with Gloo's own ring for n
up to 8.
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

#: Our wire dtypes by their names in the setting `wire_dtype`; "fp32" means that it is not set.
WIRES = ("fp32", "bf16", "fp16", "fp8", "int8", "topk")
#: torch's hooks by the width in which they add; "fp32" is DDP without compression.
HOOKS = {"fp32": allreduce_hook, "bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Maximum bytes of a segment of Gloo's ring, `kMaxSegmentSize` in gloo/allreduce.h.
SEGMENT_BYTES = 1 << 20

#: Steps of SGD before the gradients are taken, so that the model is neither new nor converged.
_TRAINED_STEPS, _LEARNING_RATE = 20, 0.05
#: Degrees of freedom of Student's t distribution, whose variance is infinite at 2. Real gradients can
#: have equally heavy tails (Simsekli et al., "A Tail-Index Analysis of Stochastic Gradient Noise in Deep
#: Neural Networks", 2019).
_FREEDOM = 2.0


class Gradients(NamedTuple):
    """One gradient per rank, as DDP would pass it in one bucket."""

    #: One row for each rank.
    values: Values
    #: Number of elements of each parameter.
    sizes: tuple[int, ...]


class Errors(NamedTuple):
    """Absolute errors over all elements, divided by the largest magnitude of the true average."""

    worst: float
    mean: float

    @classmethod
    def of(cls, result: Values, true: NDArray[np.float64]) -> Errors:
        """Compare an average with the true one."""
        error = np.abs(result.astype(np.float64) - true)
        largest = np.abs(true).max()
        return cls(float(error.max() / largest), float(error.mean() / largest))

    def over(self, other: Errors) -> Errors:
        """Return both errors as multiples of another's."""
        return Errors(
            *(mine / theirs if theirs else float("nan") for mine, theirs in zip(self, other, strict=True))
        )


def learned(name: str, count: int) -> Gradients:
    """Return gradients of a model of convergence.py, with a separate batch for each rank."""
    from benchmarks.numerics.convergence_load import LEARNERS

    learner = LEARNERS[name]()
    torch.manual_seed(0)
    model = learner.build()
    for step in range(_TRAINED_STEPS):
        model.zero_grad()
        learner.loss(model, learner.batch_of(step, 0, 1)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= _LEARNING_RATE * parameter.grad  # type: ignore[operator, misc]
    rows = []
    for rank in range(count):
        model.zero_grad()
        learner.loss(model, learner.batch_of(_TRAINED_STEPS, rank, count)).backward()
        rows.append(np.concatenate([_flat(parameter.grad) for parameter in model.parameters()]))
    return Gradients(np.stack(rows), tuple(parameter.numel() for parameter in model.parameters()))


def heavy_tailed(count: int, numel: int = 1 << 17) -> Gradients:
    """Return Student's t distributed numbers around a common direction with the same distribution, times 1e-3."""
    random = np.random.default_rng(count)
    common = random.standard_t(_FREEDOM, numel)
    values = 1e-3 * (common + random.standard_t(_FREEDOM, (count, numel)))
    return Gradients(values.astype(np.float32), (numel,))


def normal(count: int, numel: int = 1 << 17) -> Gradients:
    """Return independent normal numbers, times 1e-3, as textbooks assume."""
    values = 1e-3 * np.random.default_rng(count).standard_normal((count, numel))
    return Gradients(values.astype(np.float32), (numel,))


#: Functions that return the gradients of a number of ranks, by name.
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
    """The sum of gradients in a wire dtype."""

    result: Values
    #: The sum of the decoded contributions in float64, without errors of adding or of rounding the
    #: result.
    encoded_sum: NDArray[np.float64]


def ours(gradients: Gradients, wire: str, op: ReduceOp) -> Summed:
    """Sum as ranks and a reducer do: encode on each rank, add in rank order, scale, round once, decode.

    Error feedback is omitted, since it would only correct encoding errors in later steps. The number of
    reducers and the chunk size do not change any bit.
    """
    format_ = None if wire == "fp32" else parse(wire)
    rows = (torch.from_numpy(row.copy()) for row in gradients.values)
    encodings = [encoding_of(row, format_, gradients.sizes) for row in rows]
    dtype = DType.FLOAT32 if format_ is None else format_.dtype
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
    """Return the values without the zero padding of each parameter's last block."""
    if block == 1:
        return values
    kept, offset = [], 0
    for size in sizes:
        kept.append(values[offset : offset + size])
        offset += -(-size // block) * block
    return np.concatenate(kept)


def rounded_fold(gradients: Gradients, op: ReduceOp) -> Values:
    """Return the result promised by bf16, computed by torch: the sum in float32 in rank order, rounded once."""
    rows = torch.from_numpy(gradients.values).to(torch.bfloat16)
    total = rows[0].float()
    for row in rows[1:]:
        total = total + row.float()
    if op is ReduceOp.AVG:
        total = total / len(rows)
    return total.to(torch.bfloat16).float().numpy()


def ring(parts: torch.Tensor) -> torch.Tensor:
    """Add the rows in their own dtype in the order of Gloo's ring, as described in the module's docstring."""
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
    """Return the average of torch's hook over `ring`."""
    rows = torch.from_numpy(gradients.values).to(TORCH[width], copy=True)
    return ring(rows.div_(len(rows))).float().numpy()


class _Bucket:
    """The part of a `GradBucket` used by the hooks. torch has no constructor for a `GradBucket`."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def buffer(self) -> torch.Tensor:
        """Return the flat gradient."""
        return self._buffer


class RealRing:
    """Workload that runs torch's own hook over Gloo on every rank, see `benchmarks.lab.ranks`."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def average(self, path: Path, width: str) -> Values | None:
        """Average the rows of a file over as many ranks as it has rows. Only rank 0 returns the average."""
        values = np.load(path, mmap_mode="r")
        group: Any = dist.new_group(list(range(len(values))))
        if self._rank.rank >= len(values):
            return None
        bucket: Any = _Bucket(torch.from_numpy(values[self._rank.rank].copy()))
        result = HOOKS[width](group, bucket).wait()
        dist.destroy_process_group(group)
        return result.numpy() if self._rank.rank == 0 else None

"""The sums that compressed formats must produce, computed in one place and without any worker.

Written from the formats' description (codecs/*.py): pad each piece to whole blocks, encode it, add in rank order,
divide, encode the result, decode it. Only the codecs are the product's own.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from reduction.codecs import BLOCK_CODECS, BlockCodec
from reduction.codecs.average import scale
from reduction.model import DType, ReduceOp
from support.expected.hierarchical import combine, of_nodes
from support.processes.rank_main import Rank

SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: The format of each wire dtype, and the bytes of one block's contribution.
_BLOCKS = {
    "int8": (DType.INT8_BLOCK, 4 + 256),
    "fp8": (DType.FP8_BLOCK, 4 + 256),
    "topk": (DType.TOPK, 5 * 4),  # 1 % of 512
    "topk:0.1": (DType.TOPK, 51 * 4),
}
WIRES = (*HALVES, *_BLOCKS)


def _codec(wire: str) -> tuple[BlockCodec, int]:
    dtype, nbytes = _BLOCKS[wire]
    return BLOCK_CODECS[dtype], nbytes


def encode(row: torch.Tensor, wire: str) -> np.ndarray:
    """Return a rank's contribution."""
    codec, nbytes = _codec(wire)
    count = -(-row.numel() // codec.block)
    values = np.zeros((count, codec.block), np.float32)
    values.reshape(-1)[: row.numel()] = row.reshape(-1).float().numpy()
    contribution = np.empty(count * nbytes, np.uint8)
    codec.encode(values, contribution)
    return contribution


def decoded(row: torch.Tensor, wire: str) -> torch.Tensor:
    """Return a rank's contribution as the reducer decodes it."""
    contribution = encode(row, wire)
    codec, nbytes = _codec(wire)
    values = np.empty(len(contribution) // nbytes * codec.block, np.float32)
    codec.start(values, contribution)
    return torch.from_numpy(values)[: row.numel()].view(row.shape)


def fold(
    rows: list[torch.Tensor],
    wire: str | None,
    op: dist.ReduceOp.RedOpType = SUM,
    size: int = 1,
) -> torch.Tensor:
    """Return the expected result of these one-piece contributions; each is the sum of `size` ranks, for AVG."""
    dtype = rows[0].dtype
    if wire is None or dtype is torch.float64 or (wire in HALVES and dtype is not torch.float32):
        return Rank.fold(rows, op)
    if wire in HALVES:
        return Rank.fold([row.to(HALVES[wire]) for row in rows], op).to(dtype)
    codec, nbytes = _codec(wire)
    contributions = [encode(row, wire) for row in rows]
    count = len(contributions[0]) // nbytes
    accumulator = np.empty(count * codec.block, np.float32)
    codec.start(accumulator, contributions[0])
    for contribution in contributions[1:]:
        codec.add(accumulator, contribution, ReduceOp.SUM)
    scale(accumulator, ReduceOp.AVG if op == AVG else ReduceOp.SUM, len(rows) * size)
    layout_bytes = count * codec.block * codec.dtype.itemsize
    payload = codec.finish(accumulator, memoryview(bytearray(codec.dtype.format.result_bytes(layout_bytes))))
    result = np.empty((count, codec.block), np.float32)
    codec.decode(payload, result)
    return torch.from_numpy(result).view(-1)[: rows[0].numel()].view(rows[0].shape).to(dtype)


class Feedback:
    """All ranks' error feedback: residuals by rank and parameter, or by node if a node has several ranks."""

    def __init__(self, wire: str | None, world_size: int, size: int = 1) -> None:
        self.wire = wire
        self.size = size
        self.residuals: list[dict[int, torch.Tensor]] = [{} for _ in range(world_size // size)]

    def mean(self, number: int, column: list[torch.Tensor]) -> torch.Tensor:
        """Return the expected result of a parameter's gradients, one per rank, and update its residuals."""
        dtype = column[0].dtype
        is_lossy = self.wire in _BLOCKS and dtype is not torch.float64
        if self.size > 1 and not is_lossy:
            is_cast = self.wire in HALVES and dtype is torch.float32
            return of_nodes(column, self.size, "AVG", HALVES[self.wire] if is_cast else dtype)
        if not is_lossy:
            return fold(column, self.wire, AVG)
        nodes = [combine(column[i : i + self.size], "SUM") for i in range(0, len(column), self.size)]
        rows = []
        for residuals, gradient in zip(self.residuals, nodes, strict=True):
            row = gradient.float() + residuals.get(number, torch.zeros(()))
            left = row - decoded(row, self.wire)
            residuals[number] = left.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            rows.append(row)
        return fold(rows, self.wire, AVG, self.size).to(dtype)

    def residual_of(self, rank: int, number: int) -> torch.Tensor | None:
        """Return a rank's flat residual of a parameter: from its node's residual, the blocks that this rank encodes."""
        whole = self.residuals[rank // self.size].get(number)
        if whole is None or self.size == 1:
            return None if whole is None else whole.reshape(-1)
        block, local_rank = _codec(self.wire or "")[0].block, rank % self.size
        blocks = -(-whole.numel() // block)
        first, last = (blocks * i // self.size * block for i in (local_rank, local_rank + 1))
        kept = torch.zeros(whole.numel())
        kept[first:last] = whole.reshape(-1)[first:last]
        return kept


def assert_same(result: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Check that all bits are equal. For NaNs only the positions must match."""
    assert result.dtype == expected.dtype, what
    assert torch.equal(result.isnan(), expected.isnan()), what
    assert torch.equal(result.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)), what

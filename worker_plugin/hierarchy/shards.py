"""Hierarchical mode: which elements each local rank of a node reduces over the network, and how the node folds them.

A tensor is cut into as many shards as a node has ranks, as evenly as whole blocks of the wire format allow.
If every parameter begins its own block, each parameter is cut separately. So which rank sends which block,
and with which residual, does not depend on how DDP has filled its buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from reduction.model import ReduceOp

from worker_plugin.tensors.encoding import ParameterSlice


class Shards:
    """The shards of one tensor, by local rank.

    Args:
        slices: of the tensor, in order and without gaps; a single one if parameters do not begin their own blocks.
        block: number of elements that are encoded together; shards consist of whole blocks.
        size: number of ranks of the node.
    """

    def __init__(self, slices: Sequence[ParameterSlice], block: int, size: int) -> None:
        self._slices = slices
        #: Parts of slices in each shard: (slice_, start, stop), counted from the slice's start.
        self._parts: list[list[tuple[ParameterSlice, int, int]]] = [[] for _ in range(size)]
        for slice_ in slices:
            blocks = -(-slice_.numel // block)
            borders = [min(blocks * rank // size * block, slice_.numel) for rank in range(size + 1)]
            for rank, parts in enumerate(self._parts):
                if borders[rank] < borders[rank + 1]:
                    parts.append((slice_, borders[rank], borders[rank + 1]))
        #: Number of elements of each shard, and of the largest one.
        self.sizes = [sum(stop - start for _, start, stop in parts) for parts in self._parts]
        self.most = max(self.sizes)

    def pack(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the tensor's elements in the order of the shards, or the tensor itself if it is in that order."""
        if len(self._slices) == 1:
            return flat
        parts = [
            flat[slice_.offset + start : slice_.offset + stop]
            for shard in self._parts
            for slice_, start, stop in shard
        ]
        return torch.cat(parts) if parts else flat

    def unpack(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """Write the shards to their places in the tensor.

        Args:
            gathered: a row of `most` elements per shard.
            flat: the tensor.
        """
        for row, shard in zip(gathered, self._parts, strict=True):
            at = 0
            for slice_, start, stop in shard:
                flat[slice_.offset + start : slice_.offset + stop].copy_(row[at : at + stop - start])
                at += stop - start

    def slices_of(self, rank: int) -> list[ParameterSlice]:
        """Return the parts of the slices that lie in a rank's shard, each with its part of the residual."""
        slices, offset = [], 0
        for slice_, start, stop in self._parts[rank]:
            residual = None if slice_.residual is None else slice_.residual.part(start, stop)
            slices.append(ParameterSlice(offset, stop - start, residual))
            offset += stop - start
        return slices


def fold(parts: Sequence[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """Combine the parts in their order, as reducers do.

    16-bit types are added in float32, and the result stays float32. For bool, SUM and MAX are "or",
    PRODUCT and MIN are "and". The result may use the memory of the first part.
    """
    is_half = parts[0].dtype in (torch.bfloat16, torch.float16)
    result = parts[0].to(torch.float32) if is_half else parts[0]
    for part in parts[1:]:
        if result.dtype is torch.bool:
            combine = torch.logical_or if op in (ReduceOp.SUM, ReduceOp.MAX) else torch.logical_and
            combine(result, part, out=result)
            continue
        match op:
            case ReduceOp.SUM | ReduceOp.AVG:
                result.add_(part)
            case ReduceOp.PRODUCT:
                result.mul_(part)
            case ReduceOp.MIN:
                torch.minimum(result, part.to(result.dtype), out=result)
            case ReduceOp.MAX:
                torch.maximum(result, part.to(result.dtype), out=result)
    return result

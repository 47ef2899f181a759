"""Hierarchical mode: which elements each local rank of a node reduces over the network, and their fold in the node.

A tensor is cut into as many shards as a node has ranks, as even as whole blocks of the wire format allow. Where blocks
begin with parameters each parameter is cut by itself: so which rank sends which block, and with which residual, does
not depend on how DDP has filled its buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from reduction.model import ReduceOp

from worker_plugin.tensors.encoding import ParameterSlice


class Shards:
    """The shards of one tensor, by local rank.

    Args:
        slices: of the tensor, in order, without gaps; one, if blocks begin anywhere.
        block: elements that are encoded together; a border between shards is one between blocks.
        size: ranks of the node.
    """

    def __init__(self, slices: Sequence[ParameterSlice], block: int, size: int) -> None:
        self._slices = slices
        #: Of each shard: (slice_, start, stop), counted from the slice's start.
        self._parts: list[list[tuple[ParameterSlice, int, int]]] = [[] for _ in range(size)]
        for slice_ in slices:
            blocks = -(-slice_.numel // block)
            borders = [min(blocks * rank // size * block, slice_.numel) for rank in range(size + 1)]
            for rank, parts in enumerate(self._parts):
                if borders[rank] < borders[rank + 1]:
                    parts.append((slice_, borders[rank], borders[rank + 1]))
        #: Elements of each shard, and of the largest.
        self.sizes = [sum(stop - start for _, start, stop in parts) for parts in self._parts]
        self.most = max(self.sizes)

    def pack(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the tensor's elements shard after shard: the tensor itself if they are."""
        if len(self._slices) == 1:
            return flat
        parts = [
            flat[slice_.offset + start : slice_.offset + stop]
            for shard in self._parts
            for slice_, start, stop in shard
        ]
        return torch.cat(parts) if parts else flat

    def unpack(self, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """Write the shards, each in a row of `most` elements, to where they belong."""
        for row, shard in zip(gathered, self._parts, strict=True):
            at = 0
            for slice_, start, stop in shard:
                flat[slice_.offset + start : slice_.offset + stop].copy_(row[at : at + stop - start])
                at += stop - start

    def slices_of(self, rank: int) -> list[ParameterSlice]:
        """Return what of the slices lies in a rank's shard, each with its part of the residual."""
        slices, offset = [], 0
        for slice_, start, stop in self._parts[rank]:
            residual = None if slice_.residual is None else slice_.residual[start:stop]
            slices.append(ParameterSlice(offset, stop - start, residual))
            offset += stop - start
        return slices


def fold(parts: Sequence[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """Combine in this order, as reducers do: 16-bit types in float32, without rounding; bool by "or" and "and".

    The first part's memory may be that of the result.
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

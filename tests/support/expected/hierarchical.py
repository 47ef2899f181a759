"""Simulated nodes: ranks of one host that claim to be on several, and the sums that hierarchical mode must produce."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

HALF = (torch.bfloat16, torch.float16)


def be_launched(rank: Any, size: int | None) -> None:
    """Set the environment variables that a launcher gives to this rank on a node of `size` ranks."""
    told = {} if size is None else {"LOCAL_RANK": rank.number % size, "LOCAL_WORLD_SIZE": size}
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
        rank.cleanup.callback(os.environ.pop, name, None)
    os.environ.update({name: str(value) for name, value in told.items()})


def combine(parts: Sequence[torch.Tensor], op: Any) -> torch.Tensor:
    """Fold in order, in the accumulation dtype, element by element."""
    wide = torch.float32 if parts[0].dtype in HALF else parts[0].dtype
    result = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        part = part.to(wide)
        if wide is torch.bool:
            result = result | part if op in ("SUM", "MAX") else result & part
        elif op in ("SUM", "AVG"):
            result = result + part
        elif op == "PRODUCT":
            result = result * part
        else:
            result = (torch.minimum if op == "MIN" else torch.maximum)(result, part)
    return result


def of_nodes(
    tensors: Sequence[torch.Tensor], size: int, op: str = "SUM", wire: torch.dtype | None = None
) -> torch.Tensor:
    """Return the expected result for nodes of `size` ranks: a fold over nodes of the folds within each node."""
    dtype = tensors[0].dtype
    nodes = [combine(tensors[first : first + size], op) for first in range(0, len(tensors), size)]
    # 16-bit types are rounded before the push, and the result is rounded again.
    result = combine([node.to(wire or dtype) for node in nodes], op)
    if op == "AVG":
        result = result / len(tensors)
    return result.to(wire or dtype).to(dtype)


OPS = {
    "SUM": dist.ReduceOp.SUM,
    "AVG": dist.ReduceOp.AVG,
    "MIN": dist.ReduceOp.MIN,
    "MAX": dist.ReduceOp.MAX,
    "PRODUCT": dist.ReduceOp.PRODUCT,
}

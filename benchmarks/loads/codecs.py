"""The all-reduce of a wire dtype in one process, with the worker's encoding and the reducer's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from reduction.codecs import CODECS
from reduction.codecs.average import scale
from reduction.model import DType, ReduceOp

from worker_plugin.tensors import sent_as
from worker_plugin.tensors.encoding import Encoding, ParameterSlice
from worker_plugin.tensors.wire_dtype import WireFormat, parse


def reduced(tensors: Sequence[torch.Tensor], wire_dtype: str, op: ReduceOp = ReduceOp.SUM) -> torch.Tensor:
    """Return the result of reducing flat float32 tensors, one per rank in rank order, without error feedback."""
    wire = parse(wire_dtype)
    assert wire is not None
    layout_bytes = tensors[0].numel() * wire.dtype.itemsize
    payload = fold(
        [contribution(encoding_of(tensor, wire), layout_bytes) for tensor in tensors],
        wire.dtype,
        layout_bytes,
        op,
    )
    return delivered(encoding_of(torch.empty_like(tensors[0]), wire), layout_bytes, payload)


def contribution(encoding: Encoding, layout_bytes: int) -> memoryview:
    """Return the contribution of a rank, as one chunk."""
    payload = np.empty(encoding.contribution_bytes, np.uint8).data
    encoding.open()
    encoding.encode(0, layout_bytes, payload)
    encoding.close()
    return payload


def fold(payloads: Sequence[memoryview], dtype: DType, layout_bytes: int, op: ReduceOp) -> memoryview:
    """Return the result that a reducer computes from the contributions to one chunk."""
    codec = CODECS[dtype]
    accumulator = np.empty(codec.elements(layout_bytes), codec.accumulation)
    codec.start(accumulator, payloads[0])
    for payload in payloads[1:]:
        codec.add(accumulator, payload, op)
    scale(accumulator, op, len(payloads))
    out = None if codec.is_plain else np.empty(dtype.format.result_bytes(layout_bytes), np.uint8).data
    return codec.finish(accumulator, out)


def delivered(encoding: Encoding, layout_bytes: int, payload: memoryview) -> torch.Tensor:
    """Return the tensor of an encoding after it has received the result."""
    result = torch.empty(encoding.result_bytes, dtype=torch.uint8)
    encoding.store(0, layout_bytes, payload, result.numpy())
    encoding.decode(result)
    return encoding.tensor


def encoding_of(tensor: torch.Tensor, wire: WireFormat | None, sizes: Sequence[int] = ()) -> Encoding:
    """Return the encoding of a flat tensor, without residuals.

    Args:
        tensor: the elements of a bucket.
        wire: None for float32.
        sizes: elements of each parameter in the bucket; none for one parameter.
    """
    sizes = sizes or (tensor.numel(),)
    offsets = accumulate(sizes[:-1], initial=0)
    slices = [ParameterSlice(at, size) for at, size in zip(offsets, sizes, strict=True)]
    return sent_as.encoding_of(tensor, DType.FLOAT32, ReduceOp.SUM, wire, slices)[2]

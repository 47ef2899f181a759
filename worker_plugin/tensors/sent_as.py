"""How a tensor is represented on the wire."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from reduction.codecs import BLOCK_CODECS
from reduction.model import DType, ReduceOp

from worker_plugin.tensors.encoding import (
    FLOATS_OF_16_BITS,
    BlockEncoding,
    CastEncoding,
    Encoding,
    ParameterSlice,
)
from worker_plugin.tensors.gpu import streams
from worker_plugin.tensors.gpu.blocks import GpuBlockEncoding
from worker_plugin.tensors.wire_dtype import WireFormat


def encoding_of(
    tensor: torch.Tensor,
    dtype: DType,
    op: ReduceOp,
    wire: WireFormat | None,
    slices: Sequence[ParameterSlice],
) -> tuple[DType, int, Encoding]:
    """Return the wire dtype, the number of elements and the encoding of a tensor.

    Args:
        tensor: contiguous; of `dtype`, or float32 if `dtype` has 16 bits.
        dtype: that of the user's tensor.
        op: the reduction.
        wire: the setting.
        slices: parts that begin their own blocks, if the format has blocks.
    """
    if wire is not None and wire.applies_to(dtype, op):
        if wire.dtype in BLOCK_CODECS:
            blocks = (GpuBlockEncoding if streams.holds(tensor) else BlockEncoding)(tensor, wire, slices)
            return wire.dtype, blocks.numel, blocks
        return wire.dtype, tensor.numel(), CastEncoding(tensor, wire.dtype)
    if dtype in FLOATS_OF_16_BITS and tensor.dtype is torch.float32:
        return dtype, tensor.numel(), CastEncoding(tensor, dtype)
    return dtype, tensor.numel(), Encoding(tensor)

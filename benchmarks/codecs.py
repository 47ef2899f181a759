"""What a wire dtype makes of all ranks' tensors, in one process: the worker's encoding and the reducer's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from reduction import formats
from reduction.codecs import BLOCK_CODECS, CODECS
from reduction.codecs.interface import scale
from reduction.model import ReduceOp

from worker_plugin.encoding import BlockEncoding, CastEncoding, Encoding, Piece
from worker_plugin.wire_dtype import WireFormat, parse


def reduced(tensors: Sequence[torch.Tensor], wire_dtype: str, op: ReduceOp = ReduceOp.SUM) -> torch.Tensor:
    """Return what every rank gets for these flat float32 tensors, in rank order; without error feedback."""
    wire = parse(wire_dtype)
    assert wire is not None
    codec, numel = CODECS[wire.dtype], tensors[0].numel()
    span = numel * wire.dtype.itemsize
    accumulator = np.empty(codec.elements(span), codec.accumulation)
    for rank, tensor in enumerate(tensors):
        encoding = encoding_of(tensor, wire)
        encoding.open()
        payload = memoryview(bytearray(encoding.contribution_bytes))
        encoding.encode(0, span, payload)
        if rank == 0:
            codec.start(accumulator, payload)
        else:
            codec.add(accumulator, payload, op)
    scale(accumulator, op, len(tensors))
    payload = codec.finish(accumulator, memoryview(bytearray(formats.result_bytes(wire.dtype, span))))
    result = torch.empty(encoding.result_bytes, dtype=torch.uint8)
    target = encoding_of(torch.empty_like(tensors[0]), wire)
    target.store(0, span, payload, result.numpy())
    target.deliver(result)
    return target.tensor


def encoding_of(tensor: torch.Tensor, wire: WireFormat) -> Encoding:
    """Return the encoding of a tensor that is no bucket."""
    if wire.dtype in BLOCK_CODECS:
        return BlockEncoding(tensor, wire, [Piece(0, tensor.numel())])
    return CastEncoding(tensor, wire.dtype)

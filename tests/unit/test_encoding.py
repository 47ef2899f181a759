"""A contribution's bytes are those of its blocks, one after the other, however a bucket is put together and cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reduction import formats
from reduction.codecs import BLOCK_CODECS

from worker_plugin.encoding import BlockEncoding, Piece
from worker_plugin.wire_dtype import parse

WIRES = ("int8", "fp8", "topk", "topk:0.1")
SIZES = (700, 3, 0, 512, 5000)


def bucket(size: int = sum(SIZES)) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(7))


def encoded(wire: str, spans: list[tuple[int, int]]) -> tuple[bytes, list[list[float]]]:
    """Return what is pushed of a bucket that is encoded by these spans, and the residuals."""
    offsets = np.cumsum([0, *SIZES]).tolist()
    pieces = [
        Piece(offset, size, np.full(size, 0.25, np.float32))
        for offset, size in zip(offsets[:-1], SIZES, strict=True)
    ]
    encoding = BlockEncoding(bucket(), parse(wire), pieces)
    contribution = memoryview(bytearray(encoding.contribution_bytes))
    encoding.open()
    for start, stop in spans:
        stop = min(stop, encoding.numel * 2)
        begin, end = encoding.where(start, stop)
        encoding.encode(start, stop, contribution[begin:end])
    return bytes(contribution), [piece.residual.tolist() for piece in pieces]


@pytest.mark.parametrize("wire", WIRES)
def test_how_a_bucket_is_cut_shows_nowhere(wire):
    """Not even if one epoch cut it otherwise, and had come half way."""
    whole = encoded(wire, [(0, 1 << 20)])
    for nbytes in (1024, 4096, 7168):
        spans = [(start, start + nbytes) for start in range(0, 16 * 1024, nbytes)]
        assert encoded(wire, spans) == whole
        assert encoded(wire, [(2048, 5120), *spans]) == whole


@pytest.mark.parametrize("wire", WIRES)
def test_a_contribution_is_that_of_each_piece_after_the_other(wire):
    form = parse(wire)
    codec = BLOCK_CODECS[form.dtype]
    nbytes = form.k * formats.TOPK_ENTRY_BYTES or formats.SCALED_BYTES
    expected = []
    for row in torch.split(bucket() + 0.25, SIZES):
        for block in torch.split(row, codec.block) if len(row) else ():
            values = np.zeros((1, codec.block), np.float32)
            values[0, : len(block)] = block.numpy()
            one = np.empty(nbytes, np.uint8)
            codec.encode(values, one)
            expected.append(one.tobytes())
    assert encoded(wire, [(0, 1 << 20)])[0] == b"".join(expected)

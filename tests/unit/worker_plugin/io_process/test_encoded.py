"""A contribution encoded by another process stays where that process wrote it, and so does the result."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from reduction.limits import CHUNK_BYTES_MULTIPLE
from reduction.model import Collective, DType, ReduceOp

from worker_plugin.io_process.child import Encoded
from worker_plugin.tensors.encoding import ParameterSlice
from worker_plugin.tensors.sent_as import encoding_of
from worker_plugin.tensors.wire_dtype import parse

NUMEL = 20_000


@pytest.mark.parametrize("wire", [None, "bf16", "int8", "fp8", "topk:0.1"])
@pytest.mark.parametrize("numel", [1, NUMEL])
def test_ranges_lie_where_the_encoding_has_put_them(wire, numel):
    tensor = torch.arange(float(numel))
    slices = [ParameterSlice(0, numel)]
    dtype, count, encoding = encoding_of(tensor, DType.FLOAT32, ReduceOp.SUM, parse(wire), slices)
    collective = Collective(ReduceOp.SUM, dtype, count, 0)
    encoded = Encoded(collective, encoding.contribution_bytes)
    borders = [*range(0, collective.nbytes, CHUNK_BYTES_MULTIPLE), collective.nbytes]
    for start, stop in itertools.pairwise(borders):
        assert encoded.where(start, stop) == encoding.where(start, stop)
    contribution = memoryview(bytearray(b"\7" * 8))
    encoded.encode(0, 8, contribution)
    assert bytes(contribution) == b"\7" * 8


@pytest.mark.parametrize("wire", [None, "int8", "topk:0.1"])
def test_results_are_stored_as_the_encoding_stores_them(wire):
    tensor = torch.randn(NUMEL)
    slices = [ParameterSlice(0, NUMEL)]
    dtype, count, encoding = encoding_of(tensor, DType.FLOAT32, ReduceOp.SUM, parse(wire), slices)
    collective = Collective(ReduceOp.SUM, dtype, count, 0)
    encoded = Encoded(collective, encoding.contribution_bytes)
    payload = np.random.default_rng(0).integers(
        0, 255, dtype.format.result_bytes(CHUNK_BYTES_MULTIPLE), np.uint8
    )
    if dtype.format.may_shrink:
        payload[:] = 0  # values of zero, in their longest encoding
    stored = [np.zeros(encoding.result_bytes, np.uint8) for _ in range(2)]
    for one, out in zip((encoding, encoded), stored, strict=True):
        one.store(CHUNK_BYTES_MULTIPLE, 2 * CHUNK_BYTES_MULTIPLE, payload.data, out)
    assert np.array_equal(*stored)


def test_an_empty_collective_has_empty_ranges():
    encoded = Encoded(Collective(ReduceOp.SUM, DType.FLOAT32, 0, 0), 0)
    assert encoded.where(0, 0) == (0, 0)

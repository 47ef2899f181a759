"""What several parameters in one chunk, or a contribution that is cut afterwards, mean to a reducer."""

import numpy as np
import pytest
import torch
from reduction.codecs import BLOCK_CODECS
from reduction.model.wire_sizes import TOPK_BLOCK

from worker_plugin.tensors.encoding import BlockEncoding, ParameterSlice, Residual
from worker_plugin.tensors.wire_dtype import parse

#: As `reduction.codecs` has it for its own arithmetic.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZES = (700, 5, 1024, 512)


def encoded(wire):
    """Return an encoding of several slices, and its whole contribution."""
    values = torch.arange(1, sum(SIZES) + 1, dtype=torch.float32)
    slices, offset = [], 0
    for size in SIZES:
        slices.append(ParameterSlice(offset, size, Residual(torch.zeros(size), torch.zeros(size))))
        offset += size
    encoding = BlockEncoding(values, parse(wire), slices)
    payload = np.zeros(encoding.contribution_bytes, np.uint8)
    encoding.open()
    encoding.encode(0, encoding.numel * 2, payload.data)
    return encoding, slices, payload


@pytest.mark.parametrize("wire", ["int8", "fp8", "topk:0.25"])
def test_all_pieces_of_a_chunk_arrive(wire):
    encoding, slices, payload = encoded(wire)
    codec = BLOCK_CODECS[parse(wire).dtype]
    codec.check(payload.data)
    arrived = np.empty(encoding.numel, np.float32)
    codec.start(arrived, payload.data)
    offset = 0
    for slice_ in slices:
        sent = (
            encoding.tensor[slice_.offset : slice_.offset + slice_.numel].numpy()
            - slice_.residual.pending.numpy()
        )
        np.testing.assert_allclose(arrived[offset : offset + slice_.numel], sent, rtol=1e-5, atol=1e-3)
        assert sent.any()
        offset += -(-slice_.numel // codec.block) * codec.block


@pytest.mark.parametrize("wire", ["int8", "fp8", "topk:0.25"])
def test_a_contribution_can_be_cut_into_chunks(wire):
    encoding, _, payload = encoded(wire)
    codec = BLOCK_CODECS[parse(wire).dtype]
    whole = np.empty(encoding.numel, np.float32)
    codec.start(whole, payload.data)
    for first in range(0, encoding.numel, TOPK_BLOCK):
        begin, end = encoding.where(first * 2, (first + TOPK_BLOCK) * 2)
        part = np.empty(TOPK_BLOCK, np.float32)[: encoding.numel - first]
        codec.start(part, payload[begin:end].data)
        np.testing.assert_array_equal(part, whole[first : first + TOPK_BLOCK])

"""Encoding of tensors to contributions, chunk by chunk, and of results to tensors; residuals carry over to the next."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction.codecs import BLOCK_CODECS, CODECS
from reduction.errors import MalformedFrame
from reduction.model import DType, ReduceOp
from reduction.model.wire_sizes import SCALED_BYTES, TOPK_ENTRY_BYTES

from worker_plugin.tensors.encoding import BlockEncoding, CastEncoding, Encoding, ParameterSlice, Residual
from worker_plugin.tensors.wire_dtype import parse

KIB = 1024
CASTS = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}
PLAIN = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
LOSSY = ["int8", "fp8", "topk:0.1", "topk:0.5"]
SIZES = (0, 1, 255, 256, 257, 511, 512, 513, 1300)
INF, NAN = float("inf"), float("nan")


def spans(total, size):
    """Return the spans of a grid; an empty collective has one empty chunk."""
    return [(start, min(start + size, total)) for start in range(0, max(1, total), size)]


def pushed(encoding, chunks, contribution):
    """Do the same as `Work.payload`."""
    payloads = []
    for start, stop in chunks:
        begin, end = encoding.where(start, stop)
        payload = memoryview(contribution)[begin:end]
        encoding.encode(start, stop, payload)
        payloads.append(payload)
    return payloads


def contribution_of(encoding, size=4 * KIB):
    """Encode everything, chunk by chunk. Bytes that are not written stay 0xaa."""
    contribution = bytearray(b"\xaa" * encoding.contribution_bytes)
    encoding.open()
    pushed(encoding, spans(total_of(encoding), size), contribution)
    encoding.close()
    return bytes(contribution)


def total_of(encoding):
    """Return the bytes of the collective as the layout counts them."""
    return encoding.numel * 2 if isinstance(encoding, BlockEncoding) else encoding.contribution_bytes


def values_of(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def padded(values, codec):
    """Return a row per block."""
    rows = np.zeros((-(-len(values) // codec.block), codec.block), np.float32)
    rows.reshape(-1)[: len(values)] = values
    return rows


# ---- element by element ----


@pytest.mark.parametrize(
    ("dtype", "wire"),
    [
        *((dtype, None) for dtype in PLAIN),
        *((torch.float32, wire) for wire in CASTS),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 700), (5000,)])
def test_elements_are_sent_as_they_are_or_rounded_as_torch_does_and_come_back(dtype, wire, shape):
    tensor = (values_of(5000)[: int(np.prod(shape))] * 1000).to(dtype).reshape(shape)
    before, encoding = tensor.clone(), Encoding(tensor) if wire is None else CastEncoding(tensor, wire)
    contribution, sent = contribution_of(encoding), before.to(CASTS.get(wire, dtype))
    assert contribution == sent.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert torch.equal(tensor, before)
    tensor.zero_()
    result = torch.empty(encoding.result_bytes, dtype=torch.uint8)
    for start, stop in spans(total_of(encoding), KIB):
        encoding.store(start, stop, memoryview(contribution)[start:stop], result.numpy())
    encoding.decode(result)
    assert torch.equal(tensor, sent.to(dtype))


@pytest.mark.parametrize(
    "make",
    [
        Encoding,
        lambda tensor: CastEncoding(tensor, DType.BFLOAT16),
        lambda tensor: BlockEncoding(tensor, parse("int8"), [ParameterSlice(0, tensor.numel())]),
    ],
    ids=["plain", "cast", "block"],
)
def test_one_element_or_none_may_have_any_stride(make):
    column, empty = torch.ones(1, 2)[:, 1], torch.ones(0)[::2]
    encoding = make(column)
    assert contribution_of(encoding) == contribution_of(make(torch.ones(1)))
    assert contribution_of(make(empty)) == b""
    encoding.decode(torch.zeros(encoding.result_bytes, dtype=torch.uint8))
    assert column.tolist() == [0.0]
    assert column._version == 0, "autograd would take it for a change in place"


@pytest.mark.parametrize("make", [Encoding, lambda tensor: CastEncoding(tensor, DType.BFLOAT16)])
def test_only_the_span_asked_for_is_written(make):
    encoding = make(torch.ones(1024))
    contribution = bytearray(encoding.contribution_bytes)
    encoding.open()
    pushed(encoding, [(KIB, 2 * KIB)], contribution)
    assert set(contribution[:KIB]) == {0}
    assert 0x3F in contribution[KIB : 2 * KIB]
    assert not any(contribution[2 * KIB :])


@pytest.mark.parametrize(
    "make",
    [
        Encoding,
        lambda tensor: CastEncoding(tensor, DType.FLOAT16),
        lambda tensor: BlockEncoding(tensor, parse("int8"), [ParameterSlice(0, tensor.numel())]),
        lambda tensor: BlockEncoding(tensor, parse("topk"), [ParameterSlice(0, tensor.numel())]),
    ],
)
def test_nothing_is_written_after_close(make):
    encoding = make(torch.ones(1024))
    contribution = bytearray(b"\xaa" * encoding.contribution_bytes)
    encoding.open()
    encoding.close()
    pushed(encoding, spans(total_of(encoding), KIB), contribution)
    assert set(contribution) == {0xAA}


@pytest.mark.parametrize("dtype", CASTS)
def test_casts_may_be_asked_for_on_any_grid(dtype):
    encoding = CastEncoding(values_of(3000), dtype)
    contribution = bytearray(encoding.contribution_bytes)
    encoding.open()
    pushed(encoding, spans(6000, 2 * KIB), contribution)
    first = bytes(contribution)
    pushed(encoding, reversed(spans(6000, KIB)), contribution)
    assert contribution == first


# ---- blocks ----


def blocks_encoding(tensor, name, sizes, residuals=None):
    """Return an encoding of consecutive slices."""
    slices, offset = [], 0
    for number, size in enumerate(sizes):
        slices.append(ParameterSlice(offset, size, None if residuals is None else residuals[number]))
        offset += size
    return BlockEncoding(tensor, parse(name), slices)


def split(flat, sizes):
    """Return a copy of each slice."""
    return [part.copy() for part in np.split(np.asarray(flat, np.float32), np.cumsum(sizes)[:-1])]


def some_residuals(sizes, seed=5, loss_scale=1.0):
    kept = split(values_of(sum(sizes), seed).numpy() * 0.1, sizes)
    return [Residual(torch.from_numpy(one), torch.full((one.size,), NAN), loss_scale) for one in kept]


def expected_contribution(tensor, name, sizes, residuals=None):
    """Encode each slice as a whole; return the bytes and the residuals."""
    wire = parse(name)
    codec = BLOCK_CODECS[wire.dtype]
    nbytes = wire.k * TOPK_ENTRY_BYTES if wire.dtype is DType.TOPK else SCALED_BYTES
    contribution, left_out = b"", []
    for number, part in enumerate(split(tensor.reshape(-1).float().numpy(), sizes)):
        values = padded(
            part
            if residuals is None
            else part + residuals[number].kept.numpy() * residuals[number].loss_scale,
            codec,
        )
        for row in values:  # block by block, because bytes do not depend on what is encoded together
            out = np.empty(nbytes, np.uint8)
            codec.encode(row[None], out)
            contribution += out.tobytes()
        sent = np.empty_like(values)
        for row, block in zip(sent, contribution_blocks(contribution, len(values), nbytes), strict=True):
            codec.start(row, block)
        left_out.append((values - sent).reshape(-1)[: len(part)])
    return contribution, left_out


def contribution_blocks(contribution, count, nbytes):
    """Return the last blocks of a contribution, one by one."""
    start = len(contribution) - count * nbytes
    return [contribution[start + number * nbytes :][:nbytes] for number in range(count)]


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("sizes", [(), (0,), (0, 0)])
def test_empty_tensors_are_encoded_as_nothing(name, sizes):
    tensor = torch.empty(0)
    encoding = blocks_encoding(tensor, name, sizes, some_residuals(sizes))
    assert (encoding.numel, encoding.contribution_bytes, encoding.result_bytes) == (0, 0, 0)
    assert contribution_of(encoding) == b""
    encoding.decode(torch.empty(0, dtype=torch.uint8))


@pytest.mark.parametrize("name", LOSSY)
def test_sizes_are_those_of_the_formats(name):
    wire, encoding = parse(name), blocks_encoding(torch.zeros(sum(SIZES)), name, SIZES)
    assert wire.dtype.format.is_push(encoding.contribution_bytes, encoding.numel * 2)
    assert encoding.result_bytes == wire.dtype.format.result_bytes(encoding.numel * 2)
    for start, stop in spans(encoding.numel * 2, 3 * KIB):
        begin, end = encoding.where(start, stop)
        assert wire.dtype.format.is_push(end - begin, stop - start)


@settings(max_examples=60)
@given(
    name=st.sampled_from(LOSSY),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=6),
    grids=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_each_piece_begins_a_block_that_is_encoded_once_whatever_the_grids(name, dtype, sizes, grids, seed):
    tensor, shuffle = values_of(sum(sizes), seed).to(dtype), random.Random(seed)
    residuals = some_residuals(sizes)
    expected, left_out = expected_contribution(tensor, name, sizes, residuals)
    encoding = blocks_encoding(tensor, name, sizes, residuals)
    contribution = bytearray(encoding.contribution_bytes)
    encoding.open()
    for kib in grids:  # epochs that end before everything is pushed
        chunks = spans(encoding.numel * 2, kib * KIB)
        pushed(encoding, shuffle.sample(chunks, shuffle.randint(0, len(chunks))), contribution)
    pushed(encoding, spans(encoding.numel * 2, 2 * KIB), contribution)
    tensor.fill_(NAN)  # would show if anything were encoded again
    pushed(encoding, spans(encoding.numel * 2, 3 * KIB), contribution)
    assert contribution == expected
    for ours, theirs in zip(residuals, left_out, strict=True):
        assert np.array_equal(ours.pending, theirs)


@pytest.mark.parametrize("name", LOSSY)
def test_decoding_ignores_the_default_dtype(name):
    tensor = values_of(700)
    encoding = blocks_encoding(tensor, name, (700,), some_residuals((700,)))
    torch.set_default_dtype(torch.bfloat16)
    try:
        encoding.decode(torch.zeros(encoding.result_bytes, dtype=torch.uint8))
    finally:
        torch.set_default_dtype(torch.float32)
    assert not tensor.any()


# ---- residuals ----


@pytest.mark.parametrize("name", LOSSY)
def test_left_out_values_are_sent_later(name):
    steps, sizes = 50, (700,)
    residual = Residual(torch.zeros(700), torch.zeros(700))
    tensor, codec = values_of(700), BLOCK_CODECS[parse(name).dtype]
    total = np.zeros(2 * 512 if codec.dtype is DType.TOPK else 3 * 256)
    for _ in range(steps):
        values = np.empty(len(total), np.float32)
        codec.start(values, contribution_of(blocks_encoding(tensor, name, sizes, [residual])))
        total += values
        residual = Residual(residual.pending, residual.kept)
    np.testing.assert_allclose(
        total[:700] + residual.kept.numpy(), tensor.numpy() * steps, rtol=1e-3, atol=1e-3
    )
    assert residual.kept.abs().max() < 12 * tensor.abs().max(), "bounded, however many steps there are"


@pytest.mark.parametrize("name", LOSSY)
def test_encoding_again_gives_the_same_result(name):
    """Another communicator encodes it again; its residuals replace those of the first instead of adding to them."""
    tensor, residuals = values_of(sum(SIZES)), some_residuals(SIZES)
    first = contribution_of(blocks_encoding(tensor, name, SIZES, residuals))
    left_out = [one.pending.clone() for one in residuals]
    assert contribution_of(blocks_encoding(tensor, name, SIZES, residuals)) == first
    assert all(torch.equal(one.pending, was) for one, was in zip(residuals, left_out, strict=True))


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("loss_scale", [2.0**-4, 2.0**16])
def test_a_residual_follows_the_loss_scale(name, loss_scale):
    """Gradients of twice the size leave the same residuals, if the formats have no absolute scale."""
    tensor, residuals, scaled = (
        values_of(1300),
        some_residuals((1300,)),
        some_residuals((1300,), loss_scale=loss_scale),
    )
    contribution_of(blocks_encoding(tensor, name, (1300,), residuals))
    contribution_of(blocks_encoding(tensor * loss_scale, name, (1300,), scaled))
    assert torch.equal(scaled[0].pending, residuals[0].pending)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("special", [INF, -INF, NAN])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_result_shows_that_a_contribution_was_not_finite(name, special, rank, dtype):
    tensors = [values_of(1300, seed).to(dtype) for seed in range(2)]
    tensors[rank][600] = special
    assert not result_of(tensors, name).isfinite().all()


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize(
    ("first", "second", "residual"), [(INF, -INF, 0.0), (INF, INF, 0.0), (LARGEST, 0.0, LARGEST)]
)
def test_a_result_shows_overflows_and_more_infinities_than_top_k_takes(name, first, second, residual):
    residuals = [Residual(torch.full((512,), residual), torch.zeros(512))]
    tensors = [torch.full((512,), value) for value in (first, second)]
    assert not result_of(tensors, name, residuals).isfinite().all()


def result_of(tensors, name, residuals=None):
    """Return the result of the tensors, one per rank; the residuals are the first rank's."""
    size = tensors[0].numel()
    encodings = [
        blocks_encoding(tensor, name, (size,), None if rank else residuals)
        for rank, tensor in enumerate(tensors)
    ]
    result = torch.empty(encodings[0].result_bytes, dtype=torch.uint8)
    for start, stop, payload in reduced(encodings, parse(name).dtype, 4 * KIB):
        encodings[0].store(start, stop, payload, result.numpy())
    encodings[0].decode(result)
    return tensors[0]


# ---- results ----


def reduced(encodings, dtype, size):
    """Let reducers sum all chunks of these ranks; return the results in one grid's order."""
    codec, chunks = CODECS[dtype], spans(total_of(encodings[0]), size)
    contributions = [contribution_of(encoding, size) for encoding in encodings]
    for start, stop in chunks:
        accumulator = np.empty(codec.elements(stop - start), codec.accumulation)
        for rank, (encoding, contribution) in enumerate(zip(encodings, contributions, strict=True)):
            begin, end = encoding.where(start, stop)
            payload = memoryview(contribution)[begin:end]
            codec.check(payload)
            if rank == 0:
                codec.start(accumulator, payload)
            else:
                codec.add(accumulator, payload, ReduceOp.SUM)
        yield (
            start,
            stop,
            codec.finish(accumulator, memoryview(bytearray(dtype.format.result_bytes(stop - start)))),
        )


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [KIB, 4 * KIB])
def test_results_are_delivered_to_their_pieces(name, dtype, size):
    wire = parse(name)
    codec = BLOCK_CODECS[wire.dtype]
    tensors = [values_of(sum(SIZES), rank).to(dtype) for rank in range(3)]
    expected = []
    for parts in zip(*(split(tensor.float().numpy(), SIZES) for tensor in tensors), strict=True):
        total = np.zeros_like(padded(parts[0], codec))
        for part in parts:
            contribution, _ = expected_contribution(torch.from_numpy(part), name, (len(part),))
            codec.add(total.reshape(-1), np.frombuffer(contribution, np.uint8), ReduceOp.SUM)
        out = memoryview(bytearray(wire.dtype.format.result_bytes(total.size * 2)))
        values = np.empty_like(total)
        codec.decode(codec.finish(total, out), values)
        expected.append(values.reshape(-1)[: len(parts[0])])
    encodings = [blocks_encoding(tensor, name, SIZES) for tensor in tensors]
    result = torch.full((encodings[0].result_bytes,), 0xAA, dtype=torch.uint8)
    results = list(reduced(encodings, wire.dtype, size))
    random.Random(0).shuffle(results)
    for start, stop, payload in results:
        encodings[0].store(start, stop, payload, result.numpy())
    encodings[0].decode(result)
    assert torch.equal(tensors[0], torch.from_numpy(np.concatenate(expected)).to(dtype))


@pytest.mark.parametrize("name", LOSSY)
def test_a_result_keeps_its_tensors_shape_and_leaves_other_memory_alone(name):
    memory = torch.full((40, 50), 7.0)
    tensor = memory[10:20]
    encoding = blocks_encoding(tensor, name, (200, 300))
    encoding.decode(torch.zeros(encoding.result_bytes, dtype=torch.uint8))
    assert not tensor.any()
    assert (memory[:10] == 7.0).all()
    assert (memory[20:] == 7.0).all()


@pytest.mark.parametrize("nbytes", [1, 3, 6, 1022])
def test_a_malformed_topk_result_is_not_stored(nbytes):
    encoding = blocks_encoding(torch.zeros(1024), "topk", (1024,))
    result = np.zeros(encoding.result_bytes, np.uint8)
    with pytest.raises(MalformedFrame):
        encoding.store(1024, 2048, memoryview(b"\1" * nbytes), result)
    assert not result.any()

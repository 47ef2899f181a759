"""The block codecs as torch operations, here on the CPU: the bits of `reduction.codecs` for all values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reduction.codecs import BLOCK_CODECS
from reduction.model import DType, ReduceOp
from support.fakes.fake_gpu import garbage

from worker_plugin.tensors.encoding import BlockEncoding, ParameterSlice, Residual
from worker_plugin.tensors.gpu.blocks import GpuBlockEncoding
from worker_plugin.tensors.gpu.codecs import codec_of
from worker_plugin.tensors.wire_dtype import parse

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def another_default_dtype() -> Iterator[None]:
    """Use a default dtype other than that of these tensors."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


CPU = torch.device("cpu")
#: Top-k takes at most half of the elements. From 17 on the CPU's codec uses another method.
WIRES = ("int8", "fp8", "topk:0.002", "topk", "topk:0.05", "topk:0.5")
COUNT = 1 << 19


def patterns(random: np.random.Generator) -> NDArray[np.float32]:
    """Return any bits: all exponents, NaNs with any payload, infinities, subnormals."""
    return random.integers(0, 1 << 32, COUNT, dtype=np.uint32).view(np.float32)


def among(special: float) -> Callable[[np.random.Generator], NDArray[np.float32]]:
    def values(random: np.random.Generator) -> NDArray[np.float32]:
        made = random.standard_normal(COUNT).astype(np.float32)
        made[random.integers(0, COUNT, COUNT // 300)] = special
        return made

    return values


VALUES: dict[str, Callable[[np.random.Generator], NDArray[np.float32]]] = {
    "normal": lambda random: random.standard_normal(COUNT).astype(np.float32),
    "any bits": patterns,
    "finite": lambda random: np.nan_to_num(patterns(random)),
    "subnormal": lambda random: (patterns(random).view(np.uint32) & np.uint32(0x80FFFFFF)).view(np.float32),
    "about the smallest": lambda random: (random.standard_normal(COUNT) * 2.0**-112).astype(np.float32),
    "large": lambda random: (random.standard_normal(COUNT) * 1e38).astype(np.float32),
    "halfway": lambda random: (random.integers(-254, 255, COUNT) / 2).astype(np.float32),
    "equal magnitudes": lambda random: random.integers(-3, 4, COUNT).astype(np.float32),
    "zero": lambda _random: np.zeros(COUNT, np.float32),
    "inf": among(np.inf),
    "-inf": among(-np.inf),
    "nan": among(np.nan),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", WIRES)
def test_contributions_have_the_bits_of_the_cpus_codec(name: str, values: str) -> None:
    wire = parse(name)
    assert wire is not None
    codec, rows = BLOCK_CODECS[wire.dtype], VALUES[values](np.random.default_rng(7)).reshape(-1, wire.block)
    expected = np.empty(len(rows) * wire.push_block_bytes, np.uint8)
    codec.encode(rows.copy(), expected)
    ours = codec_of(wire, CPU)
    contribution = ours.encode(torch.from_numpy(rows.copy()))
    assert torch.equal(contribution.view(-1), torch.from_numpy(expected))
    read = np.empty_like(rows)
    codec.start(read, expected)
    np.testing.assert_array_equal(ours.sent(contribution).numpy(), read)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", WIRES)
def test_results_have_the_values_of_the_cpus_codec(name: str, values: str) -> None:
    wire = parse(name)
    assert wire is not None
    codec, sums = BLOCK_CODECS[wire.dtype], VALUES[values](np.random.default_rng(8))
    layout_bytes = COUNT * wire.dtype.itemsize
    payload = codec.finish(sums.copy(), memoryview(bytearray(wire.dtype.format.result_bytes(layout_bytes))))
    result = np.empty(wire.dtype.format.result_bytes(layout_bytes), np.uint8)
    codec.expand(payload, result)
    expected = np.empty((COUNT // wire.block, wire.block), np.float32)
    codec.decode(payload, expected)
    np.testing.assert_array_equal(codec_of(wire, CPU).decode(torch.from_numpy(result)).numpy(), expected)


def test_a_codec_is_made_once() -> None:
    fp8 = parse("fp8")
    assert fp8 is not None
    assert codec_of(fp8, CPU) is codec_of(fp8, CPU)


@pytest.mark.parametrize("batch", [1, 300, 4096, 20_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["int8", "fp8", "topk:0.1"])
def test_residuals_have_the_bits_of_the_cpus(name: str, dtype: torch.dtype, batch: int) -> None:
    """Three steps are fetched in batches that end anywhere. Two slices are empty, and one has no residual."""
    wire, sizes = parse(name), (0, 1, 700, 256, 0, 513, 9000)
    assert wire is not None
    generator = torch.Generator().manual_seed(3)
    kinds = BlockEncoding, GpuBlockEncoding
    residuals = {
        kind: [Residual(*torch.zeros(2, size, dtype=torch.float32), 3.0) for size in sizes] for kind in kinds
    }
    offsets = np.cumsum([0, *sizes[:-1]]).tolist()
    for _ in range(3):
        tensor, sent = torch.randn(sum(sizes), generator=generator, dtype=torch.float32).to(dtype), []
        for kind in kinds:
            slices = [
                ParameterSlice(offset, size, residual if size != 256 else None)
                for offset, size, residual in zip(offsets, sizes, residuals[kind], strict=True)
            ]
            encoding = kind(tensor.clone(), wire, slices)
            host = garbage(encoding.contribution_bytes)
            if kind is GpuBlockEncoding:
                for first in range(0, tensor.numel(), batch):
                    encoding.fetch(host, first, min(first + batch, tensor.numel()))
            else:
                encoding.open()
                encoding.encode(0, encoding.numel * wire.dtype.itemsize, host.numpy().data)
            sent.append(host)
        assert torch.equal(*sent)
        for one, other in zip(*residuals.values(), strict=True):
            assert torch.equal(one.pending, other.pending)
            one.kept, one.pending = one.pending, one.kept
            other.kept, other.pending = other.pending, other.kept


@pytest.mark.parametrize("name", ["int8", "fp8", "topk"])
def test_long_results_are_decoded_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_plugin.tensors.gpu.blocks.DECODED_ELEMENTS", 1024)
    wire, numel = parse(name), 9999
    assert wire is not None
    slices = [ParameterSlice(0, 5000), ParameterSlice(5000, numel - 5000)]
    values = torch.randn(numel, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    decoded = []
    for kind in (BlockEncoding, GpuBlockEncoding):
        encoding = kind(torch.zeros(numel, dtype=torch.float32), wire, slices)
        result = torch.zeros(encoding.result_bytes, dtype=torch.uint8)
        if wire.dtype is DType.TOPK:
            result.view(torch.bfloat16)[:numel] = values.to(torch.bfloat16)
        else:
            accumulator = np.zeros(encoding.numel, np.float32)
            accumulator[:numel] = values.numpy()
            BLOCK_CODECS[wire.dtype].finish(accumulator, result.numpy().data)
        encoding.decode(result)
        decoded.append(encoding.tensor)
    assert decoded[0].any()
    assert torch.equal(*decoded)


def test_no_other_format_has_a_codec() -> None:
    bf16 = parse("bf16")
    assert bf16 is not None
    assert bf16.applies_to(DType.FLOAT32, ReduceOp.SUM)
    with pytest.raises(AssertionError, match="BFLOAT16 has no blocks"):
        codec_of(bf16, CPU)

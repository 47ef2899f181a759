"""The arithmetic of a reducer: vectorised numpy, one thread, no torch.

16-bit types are accumulated in float32 and rounded once, after scaling. bfloat16 is the upper half of a
float32, so numpy needs no dtype for it: widening is a shift (exact), rounding is to nearest, ties to even,
as in torch. Work goes in blocks that stay in the cache (measured on 2 cores, 256 Ki elements: bfloat16 add
2.3 G elements/s, torch 3.5; float16 0.5, torch 4.9; a reducer that needs no torch starts in a tenth of the
time and fits on a small machine).
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from reduction.model import DType, ReduceOp

Array = NDArray[np.generic]

# Inf and NaN are data here. `np.errstate` around every sum would cost more than half of one of 64 KiB.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"reducer\.kernels")

_NATIVE: dict[DType, np.dtype[np.generic]] = {
    DType.FLOAT32: np.dtype("<f4"),
    DType.FLOAT64: np.dtype("<f8"),
    DType.INT32: np.dtype("<i4"),
    DType.INT64: np.dtype("<i8"),
}
_BLOCK = 1 << 15
_BFLOAT16_NAN = 0x7FC0


def accumulation_dtype(dtype: DType) -> np.dtype[np.generic]:
    """Return the dtype in which contributions of `dtype` are added."""
    return _NATIVE.get(dtype, _NATIVE[DType.FLOAT32])


def start(accumulator: Array, payload: memoryview, dtype: DType) -> None:
    """Set the accumulator to a copy of the first contribution."""
    if dtype is DType.BFLOAT16:
        bits = np.frombuffer(payload, "<u2")
        np.left_shift(bits, 16, out=accumulator.view(np.uint32), dtype=np.uint32, casting="unsafe")
    elif dtype is DType.FLOAT16:
        np.copyto(accumulator, np.frombuffer(payload, "<f2"))
    else:
        np.copyto(accumulator, np.frombuffer(payload, _NATIVE[dtype]))


def add(accumulator: Array, payload: memoryview, dtype: DType) -> None:
    """Add the next contribution, element by element; integers wrap around, Inf and NaN propagate."""
    if (native := _NATIVE.get(dtype)) is not None:
        np.add(accumulator, np.frombuffer(payload, native), out=accumulator)
        return
    values = np.frombuffer(payload, "<u2" if dtype is DType.BFLOAT16 else "<f2")
    scratch = np.empty(min(_BLOCK, len(values)), np.float32)
    for begin in range(0, len(values), _BLOCK):
        block = values[begin : begin + _BLOCK]
        wide = scratch[: len(block)]
        if dtype is DType.BFLOAT16:
            np.left_shift(block, 16, out=wide.view(np.uint32), dtype=np.uint32, casting="unsafe")
        else:
            np.copyto(wide, block)
        target = accumulator[begin : begin + _BLOCK]
        np.add(target, wide, out=target)


def finish(
    accumulator: Array, out: memoryview | None, dtype: DType, op: ReduceOp, world_size: int
) -> memoryview:
    """Scale, round once, and return the payload of the result.

    Args:
        accumulator: changed in place; holds the result itself where no rounding is needed.
        out: memory for 16-bit results, None for the others.
    """
    if op is ReduceOp.AVG:
        np.divide(accumulator, world_size, out=accumulator, casting="unsafe")
    if out is None:
        return accumulator.view(np.uint8).data
    if dtype is DType.FLOAT16:
        np.copyto(np.frombuffer(out, "<f2"), accumulator, casting="unsafe")
    else:
        _round_to_bfloat16(accumulator.view(np.uint32), np.frombuffer(out, "<u2"))
    return out


def _round_to_bfloat16(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Round float32 bit patterns to nearest, ties to even: add 0x7fff plus the lowest kept bit, then cut."""
    for begin in range(0, len(bits), _BLOCK):
        block = bits[begin : begin + _BLOCK]
        rounded = (block >> 16) & 1
        rounded += 0x7FFF
        rounded += block
        rounded >>= 16
        target = out[begin : begin + _BLOCK]
        np.copyto(target, rounded, casting="unsafe")
        # The addition turns some NaNs into infinities or numbers.
        target[(block & 0x7FFFFFFF) > 0x7F800000] = _BFLOAT16_NAN

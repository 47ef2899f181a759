"""bfloat16 and float16: added in float32, rounded once.

bfloat16 is the upper half of a float32, so numpy needs no dtype for it: widening is a shift, which is
exact, and rounding is to nearest, ties to even, as in torch. Work is done in batches that stay in the
cache. Measured on 2 cores with 256 Ki elements: bfloat16 add 2.3 G elements/s, torch 3.5; float16
0.5, torch 4.9. In return a reducer needs no torch, starts in a tenth of the time, and fits on a small
machine.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache

import numpy as np
from numpy.typing import NDArray

from reduction.codecs.interface import Array, Codec, Payload
from reduction.codecs.plain import UFUNCS
from reduction.model import ReduceOp

#: Elements that are worked on at a time, so that they stay in the cache.
BATCH_ELEMENTS = 1 << 14
_BFLOAT16_NAN = 0x7FC0


class _HalfCodec(Codec):
    @abstractmethod
    def _widen(self, values: NDArray[np.uint16], out: NDArray[np.float32]) -> None: ...

    def start(self, accumulator: Array, payload: Payload) -> None:
        """See `Codec.start`."""
        self._widen(np.frombuffer(payload, "<u2"), accumulator)

    def add(self, accumulator: Array, payload: Payload, op: ReduceOp) -> None:
        """See `Codec.add`."""
        values = np.frombuffer(payload, "<u2")
        scratch = np.empty(min(BATCH_ELEMENTS, len(values)), np.float32)
        for begin in range(0, len(values), BATCH_ELEMENTS):
            block = values[begin : begin + BATCH_ELEMENTS]
            wide = scratch[: len(block)]
            self._widen(block, wide)
            target = accumulator[begin : begin + BATCH_ELEMENTS]
            UFUNCS[op](target, wide, out=target)


class Bfloat16Codec(_HalfCodec):
    """The upper half of a float32."""

    def _widen(self, values: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
        widen(values, out)

    def finish(self, accumulator: Array, out: memoryview | None) -> memoryview:
        """See `Codec.finish`."""
        assert out is not None
        round_to_bfloat16(accumulator, np.frombuffer(out, "<u2"))
        return out


class Float16Codec(_HalfCodec):
    """IEEE 754 half precision, which numpy has as a dtype."""

    def _widen(self, values: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
        # numpy's own conversion takes 2 ns per element, this table 0.9.
        np.take(_float16_values(), values, out=out, mode="wrap")

    def finish(self, accumulator: Array, out: memoryview | None) -> memoryview:
        """See `Codec.finish`."""
        assert out is not None
        np.copyto(np.frombuffer(out, "<f2"), accumulator, casting="unsafe")
        return out


@cache
def _float16_values() -> NDArray[np.float32]:
    """Return the value of each of the 65536 bit patterns."""
    return np.arange(1 << 16, dtype="<u2").view("<f2").astype(np.float32)


def widen(values: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    """Convert bfloat16 bit patterns to float32."""
    np.left_shift(values, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")


def round_to_bfloat16(values: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    """Round float32 to bfloat16 bit patterns, to nearest, ties to even.

    This adds 0x7fff plus the lowest bit that is kept, and then cuts the lower half off.
    """
    bits = values.view(np.uint32)
    scratch = np.empty(min(BATCH_ELEMENTS, len(bits)), np.uint32)
    for begin in range(0, len(bits), BATCH_ELEMENTS):
        block = bits[begin : begin + BATCH_ELEMENTS]
        rounded = scratch[: len(block)]
        np.right_shift(block, 16, out=rounded)
        np.bitwise_and(rounded, 1, out=rounded)
        np.add(rounded, 0x7FFF, out=rounded)
        np.add(rounded, block, out=rounded)
        np.right_shift(rounded, 16, out=rounded)
        target = out[begin : begin + BATCH_ELEMENTS]
        np.copyto(target, rounded, casting="unsafe")
        # The addition turns some NaNs into infinities or numbers, so NaNs are written again.
        target[np.isnan(values[begin : begin + BATCH_ELEMENTS])] = _BFLOAT16_NAN

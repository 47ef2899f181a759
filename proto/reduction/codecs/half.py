"""bfloat16 and float16: added in float32, rounded once.

bfloat16 is the upper half of a float32, so numpy needs no dtype for it. Widening is a shift, which is
exact. Rounding is to nearest, ties to even, as in torch. float16 is a dtype of numpy, but numpy converts
one element at a time. Operations on the bits of whole arrays give the same results faster. Work is done in
batches that stay in the cache. Without torch a reducer starts in a tenth of the time, and fits on a small
machine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reduction.codecs.interface import Array, Codec, Payload
from reduction.codecs.plain import UFUNCS
from reduction.model import ReduceOp

#: Elements per batch. A float32 array of this size stays in the cache of a core, and numpy's overhead
#: per operation is small compared with the work.
BATCH_ELEMENTS = 1 << 16
_BFLOAT16_NAN = 0x7FC0
#: 65520 as float32 bits, the smallest magnitude that rounds to infinity.
_FLOAT16_OVERFLOW = 0x477FF000


def _operand(number: int) -> NDArray[np.uint32]:
    """Return a number as an array, because numpy needs 0.25 us per operation to convert a Python number."""
    return np.array(number, np.uint32)


_1, _13, _16 = _operand(1), _operand(13), _operand(16)
_BELOW_HALF = _operand(0x7FFF)
_MAGNITUDE = _operand(0x7FFFFFFF)
_EXPONENT = _operand(0x7F800000)
_SIGN_OF_16 = _operand(0x8000)
#: Mask of a float32's sign bit and of the bits that hold a float16's exponent and mantissa.
_FLOAT16_FIELDS = _operand(0x8FFFE000)
_FLOAT16_SCALE = np.array(2.0**112, np.float32)
#: The exponents of the smallest and the largest normal float16, as float32 bits: 2**-14 and 2**15.
_FLOAT16_EXPONENTS = _operand(127 - 14 << 23), _operand(127 + 15 << 23)
#: Multiplies the float32 that it is added to by 2**13, and adds 2048 to its mantissa.
_FLOAT16_LIFT = _operand((13 << 23) + 2048)


def _batches(count: int) -> Iterator[slice]:
    for begin in range(0, count, BATCH_ELEMENTS):
        yield slice(begin, begin + BATCH_ELEMENTS)


class _HalfCodec(Codec):
    @abstractmethod
    def _widen(self, values: NDArray[np.uint16], out: NDArray[np.float32]) -> None: ...

    def start(self, accumulator: Array, payload: Payload) -> None:
        """See `Codec.start`."""
        values = np.frombuffer(payload, "<u2")
        for batch in _batches(len(values)):
            self._widen(values[batch], accumulator[batch])

    def add(self, accumulator: Array, payload: Payload, op: ReduceOp) -> None:
        """See `Codec.add`."""
        values = np.frombuffer(payload, "<u2")
        scratch = np.empty(min(BATCH_ELEMENTS, len(values)), np.float32)
        for batch in _batches(len(values)):
            block = values[batch]
            wide = scratch[: len(block)]
            self._widen(block, wide)
            target = accumulator[batch]
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
    """IEEE 754 half precision."""

    def _widen(self, values: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
        _widen_float16(values, out)

    def finish(self, accumulator: Array, out: memoryview | None) -> memoryview:
        """See `Codec.finish`."""
        assert out is not None
        _round_to_float16(accumulator, np.frombuffer(out, "<u2"))
        return out


def widen(values: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    """Convert bfloat16 bit patterns to float32."""
    bits = out.view(np.uint32)
    bits[:] = values  # a shift that also converts takes longer than both steps
    np.left_shift(bits, _16, out=bits)


def round_to_bfloat16(values: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    """Round float32 to bfloat16 bit patterns, to nearest, ties to even.

    Add 0x7fff plus the lowest bit that is kept, and then drop the lower half.
    """
    bits = values.view(np.uint32)
    scratch = np.empty(min(BATCH_ELEMENTS, len(bits)), np.uint32)
    for batch in _batches(len(bits)):
        block, target = bits[batch], out[batch]
        rounded = scratch[: len(block)]
        np.right_shift(block, _16, out=rounded)
        np.bitwise_and(rounded, _1, out=rounded)
        np.add(rounded, _BELOW_HALF, out=rounded)
        np.add(rounded, block, out=rounded)
        np.right_shift(rounded, _16, out=rounded)
        target[:] = rounded
        # The addition turns some NaNs into infinities or numbers, so NaNs are written again. The maximum
        # is NaN if any element is, and takes less time than a mask.
        if np.isnan(np.maximum.reduce(values[batch])):
            target[np.isnan(values[batch])] = _BFLOAT16_NAN


def _widen_float16(values: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    """Convert float16 bit patterns to float32.

    Exponent and mantissa, shifted to their place in a float32, are the value times 2**-112, since the
    exponents' biases are 15 and 127. That also holds for subnormals, and the product is exact, though some
    CPUs take longer to multiply subnormals. The method is Fabian Giesen's `half_to_float_fast5`
    (https://gist.github.com/rygorous/2144712). It does not work for infinities and NaNs, so numpy converts
    batches that have any.
    """
    signed = values.view("<i2")
    if np.maximum.reduce(signed) >= 0x7C00 or np.maximum.reduce(values) >= 0xFC00:
        out[:] = values.view("<f2")
        return
    bits = out.view(np.uint32)
    bits[:] = signed
    np.left_shift(bits, _13, out=bits)
    np.bitwise_and(bits, _FLOAT16_FIELDS, out=bits)  # keeps only the first copy of the sign
    np.multiply(out, _FLOAT16_SCALE, out=out)


def _round_to_float16(values: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    """Round float32 to float16 bit patterns, to nearest, ties to even.

    Let p = 2**(e - 14) be the power of two at or just below the magnitude; e is at least 0, as float16 has
    no smaller exponent. The result is k times 2**-10 p, and k is at most 2**11. The last bit of a float32
    just above 2**13 p is worth 2**-10 p, so adding 2**13 p to the magnitude rounds correctly, and leaves k
    in the sum's mantissa. The bits of the result are 1024 e + k: the leading one of k, which subnormals
    lack, raises the exponent by one. The exponent of the sum, shifted down to bit 10, is 1024 (e + 126).
    With 2048 more in the mantissa that is 2**17 too much, which the conversion to 16 bits drops.

    Rounding by such an addition is the method of `fp16_ieee_from_fp32_value` in Marat Dukhan's library FP16.
    numpy converts batches that have a NaN or a value that rounds to infinity.
    """
    bits = values.view(np.uint32)
    scratch = np.empty((2, min(BATCH_ELEMENTS, len(bits))), np.uint32)
    for batch in _batches(len(bits)):
        block, target = bits[batch], out[batch]
        magnitudes, sums = scratch[:, : len(block)]
        np.bitwise_and(block, _MAGNITUDE, out=magnitudes)
        if np.maximum.reduce(magnitudes) >= _FLOAT16_OVERFLOW:
            target.view("<f2")[:] = values[batch]
            continue
        np.bitwise_and(magnitudes, _EXPONENT, out=sums)
        # np.maximum with a scalar takes several times as long.
        sums.clip(*_FLOAT16_EXPONENTS, out=sums)
        np.add(sums, _FLOAT16_LIFT, out=sums)
        np.add(magnitudes.view(np.float32), sums.view(np.float32), out=sums.view(np.float32))
        np.right_shift(sums, _13, out=magnitudes)
        np.add(sums, magnitudes, out=sums)
        np.right_shift(block, _16, out=magnitudes)
        np.bitwise_and(magnitudes, _SIGN_OF_16, out=magnitudes)
        np.add(sums, magnitudes, out=sums)
        target[:] = sums

"""One byte per element and a scale per block: int8, and fp8 (e4m3).

A block is a float32 scale and SCALED_BLOCK elements, whose value is element times scale. The scale
maps the block's largest magnitude to the largest number of a byte, which is 127 for int8 and 448 for
fp8. So the error of an element is at most 1/254 of the block's largest value for int8, or 1/16 of its
own value for fp8. A block with Inf or NaN has the scale NaN, so the whole block becomes NaN, which a
gradient scaler notices. A block whose values are all below 2^-110 becomes 0.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache

import numpy as np
from numpy.typing import NDArray

from reduction.codecs.interface import Array, BlockCodec, Payload
from reduction.model import ReduceOp
from reduction.model.wire_sizes import SCALED_BLOCK

#: Blocks per batch, few enough to stay in the cache.
BATCH_BLOCKS = 128
#: A block whose largest magnitude does not exceed this becomes 0.
SMALLEST = 2.0**-110
#: Starting points in the table of noise. A 16-bit hash chooses one.
_NOISES = 1 << 16
#: Width of the noise in steps of an element. It is less than a whole step by the amount that rounding
#: can add to 127 times a quotient, so that no element leaves the range of a byte.
_NOISE_WIDTH = np.float32(1 - 2.0**-12)


class _ScaledCodec(BlockCodec):
    #: Largest magnitude of an element.
    largest: float
    #: Whether noise is added before results are rounded, so that their mean is right (Gray and
    #: Stockham, "Dithered quantizers", 1993). Contributions need no noise, because error feedback
    #: corrects them.
    dithers_results = False
    layout: np.dtype[np.void]

    @abstractmethod
    def _quantise(self, scaled: NDArray[np.float32], out: Array) -> None:
        """Round values of magnitude up to `largest` to elements; `scaled` may be changed."""

    @abstractmethod
    def _values(self, elements: Array, scales: Array, out: NDArray[np.float32]) -> None:
        """Write the values of elements."""

    def encode(self, values: Array, out: Array) -> None:
        """See `BlockCodec.encode`."""
        self._encode(values, out, is_result=False)

    def _encode(self, values: Array, out: Array, *, is_result: bool) -> None:
        blocks = np.frombuffer(out, self.layout)
        scales, elements = blocks["scale"], blocks["elements"]
        scratch = np.empty((min(BATCH_BLOCKS, len(blocks)), SCALED_BLOCK), np.float32)
        largest = np.float32(self.largest)
        for first in range(0, len(blocks), BATCH_BLOCKS):
            rows = values[first : first + BATCH_BLOCKS]
            scaled = scratch[: len(rows)]
            np.abs(rows, out=scaled)
            most = np.maximum.reduce(scaled, axis=1)
            scale = most * np.float32(1 / largest)
            factor = np.divide(largest, most, out=np.zeros(len(rows), np.float32), where=most > SMALLEST)
            scale[most <= SMALLEST] = 0
            scale[~np.isfinite(most)] = np.nan
            scales[first : first + BATCH_BLOCKS] = scale
            np.multiply(rows, factor[:, None], out=scaled)
            if is_result and self.dithers_results:
                scaled += _noise(rows)
            self._quantise(scaled, elements[first : first + BATCH_BLOCKS])

    def start(self, accumulator: Array, payload: Payload) -> None:
        """See `Codec.start`."""
        blocks, target = np.frombuffer(payload, self.layout), accumulator.reshape(-1, SCALED_BLOCK)
        for first in range(0, len(blocks), BATCH_BLOCKS):
            batch = blocks[first : first + BATCH_BLOCKS]
            self._values(batch["elements"], batch["scale"][:, None], target[first : first + BATCH_BLOCKS])

    def add(self, accumulator: Array, payload: Payload, op: ReduceOp) -> None:
        """See `Codec.add`."""
        blocks, target = np.frombuffer(payload, self.layout), accumulator.reshape(-1, SCALED_BLOCK)
        scratch = np.empty((min(BATCH_BLOCKS, len(blocks)), SCALED_BLOCK), np.float32)
        for first in range(0, len(blocks), BATCH_BLOCKS):
            batch, rows = blocks[first : first + BATCH_BLOCKS], target[first : first + BATCH_BLOCKS]
            values = scratch[: len(batch)]
            self._values(batch["elements"], batch["scale"][:, None], values)
            np.add(rows, values, out=rows)

    def finish(self, accumulator: Array, out: memoryview | None) -> memoryview:
        """See `Codec.finish`."""
        assert out is not None
        self._encode(accumulator.reshape(-1, SCALED_BLOCK), np.frombuffer(out, np.uint8), is_result=True)
        return out

    def decode(self, payload: Payload, out: Array) -> None:
        """See `BlockCodec.decode`."""
        self.start(out, payload)


class Int8Codec(_ScaledCodec):
    """Whole numbers from -127 to 127, rounded to nearest, ties to even; results are dithered.

    Without dithering, an element of the average below half a step of its block would always become 0.
    Error feedback makes a rank occasionally send a whole step of a small element. With 8 ranks such a
    step is 1/8 of a step in the average, and without dithering only 1 % of them survived.
    """

    largest = 127.0
    dithers_results = True
    layout = np.dtype([("scale", "<f4"), ("elements", "i1", (SCALED_BLOCK,))])

    def _quantise(self, scaled: NDArray[np.float32], out: Array) -> None:
        np.rint(scaled, out=scaled)
        np.copyto(out, scaled, casting="unsafe")

    def _values(self, elements: Array, scales: Array, out: NDArray[np.float32]) -> None:
        np.multiply(elements, scales, out=out)


class Fp8Codec(_ScaledCodec):
    """OCP e4m3: 4 bits of exponent with bias 7, 3 of mantissa, subnormals, no Inf (arXiv 2209.05433)."""

    largest = 448.0
    layout = np.dtype([("scale", "<f4"), ("elements", "u1", (SCALED_BLOCK,))])

    def _quantise(self, scaled: NDArray[np.float32], out: Array) -> None:
        # "Round to odd": set the last bit of a float32's upper half if any lower bit was set. The upper
        # half then rounds to 3 bits of mantissa as the whole number would (Boldo and Melquiond,
        # "Emulation of a FMA and correctly rounded sums", 2008).
        bits = scaled.view(np.uint32)
        odd = bits & np.uint32(0xFFFF)
        odd += np.uint32(0xFFFF)  # carries into the last bit of the upper half if any lower bit is set
        np.bitwise_or(bits, odd, out=odd)
        odd >>= np.uint32(16)
        np.take(e4m3_codes(), odd, out=out, mode="clip")

    def _values(self, elements: Array, scales: Array, out: NDArray[np.float32]) -> None:
        np.take(e4m3_values(), elements, out=out, mode="clip")
        np.multiply(out, scales, out=out)


def _noise(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return uniform noise of at most half a step for every element, so that none leaves the range of a byte.

    The noise depends only on the block's own bits. Seq, chunk and position in a bucket would differ
    after a restart from a checkpoint. A block that differs in one bit gets different noise.
    """
    folded = np.bitwise_xor.reduce(values.view(np.uint32), axis=1)
    # Multiply-shift hashing (Dietzfelbinger et al., 1997).
    noise: NDArray[np.float32] = _noises()[folded * np.uint32(0x9E3779B1) >> np.uint32(16)]
    return noise


@cache
def _noises() -> NDArray[np.float32]:
    """Return a block of numbers from -0.5 to 0.5 for every starting point, all as views of one table."""
    table = np.random.Generator(np.random.Philox(1)).random(_NOISES + SCALED_BLOCK - 1, np.float32)
    return np.lib.stride_tricks.sliding_window_view((table - np.float32(0.5)) * _NOISE_WIDTH, SCALED_BLOCK)


@cache
def e4m3_values() -> NDArray[np.float32]:
    """Return the value of each of the 256 bit patterns."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    value[code & 127 == 127] = np.nan
    return np.where(code < 128, value, -value).astype(np.float32)


@cache
def e4m3_codes() -> NDArray[np.uint8]:
    """Return the nearest e4m3 pattern of every upper half of a float32.

    Ties go to even. Inf and NaN become one NaN.
    """
    halves = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # some of the patterns are signalling NaNs
        magnitude = np.abs(halves).astype(np.float64)
    values = e4m3_values()[:127].astype(np.float64)
    borders = (values[1:] + values[:-1]) / 2
    below, above = np.searchsorted(borders, magnitude, "left"), np.searchsorted(borders, magnitude, "right")
    code = np.where(below % 2 == 0, below, above)  # the two differ only for a tie
    code |= np.where(np.signbit(halves), 128, 0)
    # NaN loses its sign, because that depends on which lane of the SIMD unit computed it.
    code[~np.isfinite(magnitude)] = 127
    return code.astype(np.uint8)

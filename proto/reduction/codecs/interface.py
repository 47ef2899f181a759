"""What a wire dtype can do: become sums on a reducer, and values on a worker. Vectorised numpy, one thread, no state.

16-bit and smaller types are accumulated in float32 and rounded once, after scaling. Inf and NaN are data: they go
through as torch would have it, or turn a block into NaN.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reduction.model import DType, ReduceOp

Array = NDArray[Any]
Payload = memoryview | Array

# `np.errstate` around every sum would cost more than half of one of 64 KiB.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"reduction\.codecs")


class Codec(ABC):
    """One wire dtype. Arrays have whole blocks; payloads need no alignment."""

    #: In which contributions are added.
    accumulation: np.dtype[Any] = np.dtype("<f4")
    #: Whether the accumulator's bytes are the payload of a contribution, and of the result.
    is_plain = False

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.block = dtype.format.block

    def elements(self, layout_bytes: int) -> int:
        """Return the elements of a chunk, whole blocks."""
        return self.dtype.format.blocks(layout_bytes) * self.block

    def check(self, payload: memoryview) -> None:  # noqa: B027  # most have nothing to check
        """Look at a contribution of the right size before it is taken.

        Raises:
            MalformedFrame: it cannot be added.
        """

    @abstractmethod
    def start(self, accumulator: Array, payload: Payload) -> None:
        """Set the accumulator to the first contribution."""

    @abstractmethod
    def add(self, accumulator: Array, payload: Payload, op: ReduceOp) -> None:
        """Combine with the next contribution, element by element."""

    @abstractmethod
    def finish(self, accumulator: Array, out: memoryview | None) -> memoryview:
        """Round once and return the payload of the result.

        Args:
            accumulator: changed in place; is the result itself if `is_plain`.
            out: memory for the result otherwise, `Format.result_bytes` of it.
        """


def scale(accumulator: Array, op: ReduceOp, divisor: int) -> None:
    """Make an average of a sum, if that is wanted."""
    if op is ReduceOp.AVG:
        np.divide(accumulator, divisor, out=accumulator, casting="unsafe")


class BlockCodec(Codec):
    """A lossy one that encodes float32 block by block; arrays of values have a row per block."""

    @abstractmethod
    def encode(self, values: Array, out: Array) -> None:
        """Make a contribution; `start` shows what the reducer will make of it."""

    def expand(self, payload: Payload, out: Array) -> None:
        """Write a result to `out`, which has the most bytes that a result of this chunk can have.

        Raises:
            MalformedFrame: no reducer of ours sends this.
        """
        # numpy gives the GIL away for this copy, a memoryview would not.
        out[:] = np.frombuffer(payload, np.uint8)

    @abstractmethod
    def decode(self, payload: Payload, out: Array) -> None:
        """Make values of a result.

        Raises:
            MalformedFrame: no reducer of ours sends this.
        """

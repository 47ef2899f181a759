"""Interface of codecs, which add contributions on a reducer, and encode and decode on a worker.

Codecs are vectorised numpy, run on one thread and have no state. Types of 16 bits and less are
accumulated in float32 and rounded once, after scaling. Inf and NaN are data: they propagate as in
torch, or turn a block into NaN.
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

# Overflow in data does not deserve a warning. `np.errstate` around every sum would cost more than
# half the time of a 64 KiB sum.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"reduction\.codecs")


class Codec(ABC):
    """The codec of one wire dtype. Arrays have whole blocks; payloads need no alignment."""

    #: The dtype in which contributions are added.
    accumulation: np.dtype[Any] = np.dtype("<f4")
    #: Whether contributions and results have exactly the bytes of the accumulator.
    is_plain = False

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.block = dtype.format.block

    def elements(self, layout_bytes: int) -> int:
        """Return the number of elements of a chunk, padded to whole blocks."""
        return self.dtype.format.blocks(layout_bytes) * self.block

    def check(self, payload: memoryview) -> None:  # noqa: B027  # most codecs have nothing to check
        """Check a contribution of the right size before it is accepted.

        Raises:
            MalformedFrame: the contribution cannot be added.
        """

    @abstractmethod
    def start(self, accumulator: Array, payload: Payload) -> None:
        """Set the accumulator to the first contribution."""

    @abstractmethod
    def add(self, accumulator: Array, payload: Payload, op: ReduceOp) -> None:
        """Combine with the next contribution, element by element."""

    def start_with_two(self, accumulator: Array, first: Payload, second: Payload, op: ReduceOp) -> None:
        """Do the work of `start` and `add`, possibly in one pass."""
        self.start(accumulator, first)
        self.add(accumulator, second, op)

    @abstractmethod
    def finish(self, accumulator: Array, out: memoryview | None) -> memoryview:
        """Round once and return the payload of the result.

        Args:
            accumulator: changed in place. If `is_plain`, it is the result.
            out: memory for the result unless `is_plain`; has `Format.result_bytes`.
        """


class BlockCodec(Codec):
    """A lossy codec that encodes float32 block by block; arrays of values have a row per block."""

    @abstractmethod
    def encode(self, values: Array, out: Array) -> None:
        """Encode values as a contribution. `start` returns the values that a reducer will read in it."""

    def expand(self, payload: Payload, out: Array) -> None:
        """Write a result to `out`, which has the maximum size of a result of this chunk.

        Raises:
            MalformedFrame: the payload is not a result.
        """
        # numpy releases the GIL for this copy; a memoryview would not.
        out[:] = np.frombuffer(payload, np.uint8)

    @abstractmethod
    def decode(self, payload: Payload, out: Array) -> None:
        """Decode a result to values.

        Raises:
            MalformedFrame: the payload is not a result.
        """

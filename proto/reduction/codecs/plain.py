"""Elements as they are, added in their own dtype.

Integers wrap around as in torch, and NaN propagates through all ops.
"""

from __future__ import annotations

import numpy as np

from reduction.codecs.interface import Array, Codec, Payload
from reduction.model import DType, ReduceOp

UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}


class PlainCodec(Codec):
    """float32, float64 and the integers."""

    is_plain = True

    def __init__(self, dtype: DType, accumulation: str) -> None:
        super().__init__(dtype)
        self.accumulation = np.dtype(accumulation)

    def start(self, accumulator: Array, payload: Payload) -> None:
        """See `Codec.start`."""
        np.copyto(accumulator, self._values(payload))

    def start_with_two(self, accumulator: Array, first: Payload, second: Payload, op: ReduceOp) -> None:
        """See `Codec.start_with_two`. One pass halves the memory traffic."""
        self._combine(op)(self._values(first), self._values(second), out=accumulator)

    def add(self, accumulator: Array, payload: Payload, op: ReduceOp) -> None:
        """See `Codec.add`."""
        self._combine(op)(accumulator, self._values(payload), out=accumulator)

    def _combine(self, op: ReduceOp) -> np.ufunc:
        return UFUNCS[op]

    def finish(self, accumulator: Array, out: memoryview | None) -> memoryview:
        """See `Codec.finish`."""
        return accumulator.view(np.uint8).data

    def _values(self, payload: Payload) -> Array:
        values: Array = np.frombuffer(payload, self.accumulation)
        return values


class BoolCodec(PlainCodec):
    """One byte per element, 0 or 1. SUM and MAX are "or", PRODUCT and MIN are "and", as with NCCL in torch."""

    def _combine(self, op: ReduceOp) -> np.ufunc:
        return np.bitwise_or if op in (ReduceOp.SUM, ReduceOp.MAX) else np.bitwise_and

"""AVG: divide the sum of all contributions by their number once, before it is rounded to the wire dtype."""

from __future__ import annotations

import numpy as np

from reduction.codecs.interface import Array
from reduction.model import ReduceOp


def scale(accumulator: Array, op: ReduceOp, divisor: int) -> None:
    """Divide a sum by the number of contributions if the op is AVG."""
    if op is ReduceOp.AVG:
        np.divide(accumulator, divisor, out=accumulator, casting="unsafe")

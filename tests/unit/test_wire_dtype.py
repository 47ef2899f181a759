"""What the setting `wire_dtype` applies to."""

from __future__ import annotations

import pytest
from reduction.model import DType, ReduceOp

from worker_plugin.wire_dtype import parse

SUM, AVG = ReduceOp.SUM, ReduceOp.AVG
SIXTEEN_BITS = {DType.BFLOAT16, DType.FLOAT16}


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8", "int8", "topk", "topk:0.1"])
def test_only_sums_and_averages_of_small_floating_point_numbers(name):
    wire = parse(name)
    taken = {(dtype, op) for dtype in DType for op in ReduceOp if wire.applies_to(dtype, op)}
    dtypes = {DType.FLOAT32} if name in ("bf16", "fp16") else {DType.FLOAT32, *SIXTEEN_BITS}
    assert taken == {(dtype, op) for dtype in dtypes for op in (SUM, AVG)}

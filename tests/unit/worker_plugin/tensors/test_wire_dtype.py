"""The setting `wire_dtype`: its values, and the collectives that they affect."""

import pytest
from reduction.errors import ConfigError
from reduction.model import DType, ReduceOp

from worker_plugin.tensors.wire_dtype import WireFormat, parse

SUMS = [ReduceOp.SUM, ReduceOp.AVG]
REAL = [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16]


@pytest.mark.parametrize(
    ("text", "dtype", "k"),
    [
        ("bf16", DType.BFLOAT16, 1),
        ("fp16", DType.FLOAT16, 1),
        ("fp8", DType.FP8_BLOCK, 1),
        ("int8", DType.INT8_BLOCK, 1),
        ("topk", DType.TOPK, 5),
        ("topk:0.01", DType.TOPK, 5),
        ("topk:0.1", DType.TOPK, 51),
        ("topk:0.5", DType.TOPK, 256),
        ("topk:5e-1", DType.TOPK, 256),
        ("topk:0.002", DType.TOPK, 1),
        ("topk:1e-9", DType.TOPK, 1),  # at least one of each block
    ],
)
def test_names_are_parsed(text, dtype, k):
    assert parse(None) is None
    assert parse(text) == WireFormat(dtype, k)


KNOWN = ("None", "'bf16'", "'fp16'", "'fp8'", "'int8'", "'topk'", "'topk:RATIO'")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *(
            (text, KNOWN)
            for text in ("", "bf17", "BF16", "float32", " fp8", "bf16:", "int8:0.1", ":0.1", "Topk")
        ),
        *(
            (f"topk:{ratio}", ("above 0", "0.5"))
            for ratio in ("", "x", "0", "-0.1", "0.51", "1", "nan", "inf", "-inf", "0.1:0.1", "1%")
        ),
    ],
)
def test_invalid_names_are_reported_with_the_allowed_ones(text, named):
    with pytest.raises(ConfigError, match=f"wire_dtype is {text!r}; ") as caught:
        parse(text)
    assert [one for one in named if one not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        *((cast, [DType.FLOAT32]) for cast in ("bf16", "fp16")),
        *((blocks, REAL) for blocks in ("int8", "fp8", "topk")),
    ],
)
@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", DType)
def test_a_format_applies_only_to_some_collectives(name, dtypes, dtype, op):
    assert parse(name).applies_to(dtype, op) is (dtype in dtypes and op in SUMS)
    assert parse(name).dtype.allows(op) or op not in SUMS

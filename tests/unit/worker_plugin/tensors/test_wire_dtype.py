"""The setting `wire_dtype`: which names there are, and which collectives they change."""

import pytest
from reduction.errors import ConfigError
from reduction.model import DType, ReduceOp

from worker_plugin.tensors import wire_dtype
from worker_plugin.tensors.wire_dtype import WireFormat, parse

SUMS = [ReduceOp.SUM, ReduceOp.AVG]
REAL = [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16]


def test_none_leaves_all_as_they_are():
    assert parse(None) is None


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
def test_names(text, dtype, k):
    assert parse(text) == WireFormat(dtype, k)


@pytest.mark.parametrize(
    "text", ["", "bf17", "BF16", "float32", " fp8", "bf16:", "int8:0.1", "bf16:0.1", ":0.1", "Topk"]
)
def test_an_unknown_name_is_named_with_all_that_are_known(text):
    known = "None, 'bf16', 'fp16', 'fp8', 'int8', 'topk' and 'topk:RATIO'"
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value) == f"wire_dtype is {text!r}; this version knows {known}"


@pytest.mark.parametrize("ratio", ["", "x", "0", "-0.1", "0.51", "1", "nan", "inf", "-inf", "0.1:0.1", "1%"])
def test_a_wrong_ratio_is_named_with_what_is_allowed(ratio):
    with pytest.raises(ConfigError) as caught:
        parse(f"topk:{ratio}")
    assert (
        str(caught.value) == f"wire_dtype is 'topk:{ratio}'; the ratio must be a number above 0, 0.5 at most"
    )


def test_the_default_ratio():
    assert wire_dtype.RATIO_DEFAULT == 0.01


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", DType)
def test_casts_apply_to_sums_of_float32(name, dtype, op):
    assert parse(name).applies_to(dtype, op) is (dtype is DType.FLOAT32 and op in SUMS)


@pytest.mark.parametrize("name", ["int8", "fp8", "topk"])
@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", DType)
def test_block_formats_apply_to_sums_of_real_numbers(name, dtype, op):
    assert parse(name).applies_to(dtype, op) is (dtype in REAL and op in SUMS)


@pytest.mark.parametrize("name", ["bf16", "fp16", "int8", "fp8", "topk"])
def test_a_format_applies_only_to_what_it_allows(name):
    wire = parse(name)
    assert all(wire.dtype.allows(op) for op in ReduceOp if wire.applies_to(DType.FLOAT32, op))

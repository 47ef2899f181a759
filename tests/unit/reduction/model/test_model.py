"""The protocol's values: numbers equal to the schema's, and the properties derived from them."""

from dataclasses import MISSING, fields

import pytest
import torch
from reduction.model import Collective, Configuration, DType, JobStatus, Member, Presence, ReduceOp
from reduction.v1 import reduction_pb2 as pb

A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("ours", "schema", "prefix"),
    [
        (DType, pb.DType, "DTYPE_"),
        (ReduceOp, pb.ReduceOp, "REDUCE_OP_"),
        (Presence, pb.Presence, "PRESENCE_"),
    ],
)
def test_enums_have_the_schemas_numbers(ours, schema, prefix):
    assert {prefix + "UNSPECIFIED": 0} | {prefix + member.name: member.value for member in ours} == dict(
        schema.items()
    )


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype < DType.INT8_BLOCK])
def test_itemsize_and_kind_match_torch(dtype):
    theirs = getattr(torch, dtype.name.lower())
    assert dtype.itemsize == theirs.itemsize
    assert dtype.allows(ReduceOp.AVG) == theirs.is_floating_point
    assert all(dtype.allows(op) for op in ReduceOp if op is not ReduceOp.AVG)


@pytest.mark.parametrize("dtype", [DType.INT8_BLOCK, DType.FP8_BLOCK, DType.TOPK])
def test_compressed_formats_can_only_be_added(dtype):
    assert [op for op in ReduceOp if dtype.allows(op)] == [ReduceOp.SUM, ReduceOp.AVG]
    assert dtype.itemsize == 2, "half of a float32 accumulator: what the credit counts"


def test_a_collective_reads_well_in_messages():
    collective = Collective(ReduceOp.AVG, DType.BFLOAT16, 12, 0xAB)
    assert str(collective) == "AVG of 12 x bfloat16 (layout 00000000000000ab)"


def test_a_configuration_knows_its_dealing_order():
    configuration = Configuration(C, 1, 1024, (Member("a:1", A, 3), Member("b:1", B)))
    assert configuration.weights == (3, 1)
    assert configuration.index_of(A) == 0
    assert configuration.index_of(B) == 1
    assert configuration.index_of(C) is None


@pytest.mark.parametrize(("group", "title"), [("", "mine"), ("0,2", "mine [ranks 0,2]")])
def test_the_title_of_a_process_groups_job_names_its_ranks(group, title):
    required = {field.name: 0 for field in fields(JobStatus) if field.default is MISSING}
    assert JobStatus(**required | {"job": "mine", "group": group}).title == title

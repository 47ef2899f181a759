"""`all_reduce` with every `wire_dtype`, and with all dtypes and ops, in real processes without a process group."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from reduction.errors import CollectiveMismatch
from support.expected.lossy import AVG, SUM, WIRES, assert_same, fold
from support.processes.reducers import status_of

KIB = 1024
SIZES = (0, 1, 255, 256, 257, 511, 512, 513, 100_003)
INF, NAN = float("inf"), float("nan")
MIN, MAX, PRODUCT = dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8)


# ---- in the ranks ----


def sums(rank, reducers, job, wires, sizes, settings):
    for wire in wires:
        with rank.state(reducers, f"{job}-{wire}", wire_dtype=wire, **settings) as state:
            for op in (SUM, AVG):
                for step, size in enumerate(sizes):
                    rows = [rank.values(other, (size,), step=step) for other in range(rank.world_size)]
                    tensor = rows[rank.number].clone()
                    result = rank.wait(state.all_reduce(tensor, op))
                    assert result.data_ptr() == tensor.data_ptr(), "the value has other storage"
                    expected = fold(rows, wire, op)
                    assert torch.equal(tensor, expected), f"{wire} {op} of {size}: {tensor} {expected}"
                    assert size < 256 or not torch.equal(tensor, rank.fold(rows, op)), f"{wire} loses nothing"


def shapes_and_small_dtypes(rank, reducers, job):
    for wire in WIRES:
        with rank.state(reducers, f"{job}-{wire}", wire_dtype=wire) as state:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for step, shape in enumerate([(), (3, 0, 2), (33, 5), (7, 1000)]):
                    rows = [rank.values(other, shape, dtype, step) for other in range(rank.world_size)]
                    result = rank.wait(state.all_reduce(rows[rank.number].clone(), AVG))
                    assert_same(result, fold(rows, wire, AVG), (wire, dtype, shape))
                    if wire in ("bf16", "fp16") and dtype is not torch.float32:
                        assert torch.equal(result, rank.fold(rows, AVG)), "16 bits are not sent in others"


def unusual_tensors(rank, reducers, job):
    """Sum tensors of inference mode, and parameters."""
    for wire in WIRES:
        with rank.state(reducers, f"{job}-{wire}", wire_dtype=wire) as state:
            rows = [rank.values(other, (1000,)) for other in range(rank.world_size)]
            parameter = torch.nn.Parameter(rows[rank.number].clone())
            with torch.inference_mode():
                inference = rows[rank.number].clone()
            for tensor in (inference, parameter):
                rank.wait(state.all_reduce(tensor))
                assert_same(tensor.detach().clone(), fold(rows, wire), wire)


def special_values(rank, reducers, job):
    """Return, per wire dtype, the indices of Inf and of NaN elements."""
    rows = [torch.full((1200,), 0.5) for _ in range(2)]
    rows[0][3] = INF
    rows[0][600], rows[1][601] = NAN, -INF
    rows[0][1100] = rows[1][1100] = 60_000.0  # the sum exceeds the range of float16
    rows[1][1101] = 70_000.0
    seen = {}
    for wire in WIRES:
        with rank.state(reducers, f"{job}-{wire}", wire_dtype=wire) as state:
            result = rank.wait(state.all_reduce(rows[rank.number].clone()))
            assert_same(result, fold(rows, wire), wire)
            seen[wire] = [kind(result).nonzero().view(-1).tolist() for kind in (torch.isinf, torch.isnan)]
            again = rank.wait(state.all_reduce(torch.full((1200,), 0.5)))
            assert again.isfinite().all(), "what was wrong with one collective shows in the next"
    return seen


def two_ratios(rank, reducers, job):
    """Return the error of ranks whose top-k ratios differ."""
    ratio = ("topk:0.25", "topk:0.5", "topk:0.25")[rank.number]
    with rank.state(reducers, job, wire_dtype=ratio) as state:
        with pytest.raises(CollectiveMismatch) as caught:
            rank.wait(state.all_reduce(rank.values(rank.number, (2000,))))
        assert isinstance(state.error, CollectiveMismatch)
    return str(caught.value)


def untouched(rank, reducers, job, wire):
    """Check that dtypes and ops to which `wire_dtype` does not apply are exact."""
    with rank.state(reducers, job, wire_dtype=wire, chunk_bytes=4 * KIB) as state:
        for dtype in (*FLOATS, *INTEGERS, torch.bool):
            small = dtype.is_floating_point and dtype is not torch.float64
            for op in (MIN, MAX, PRODUCT, SUM, AVG):
                if (op == AVG and not dtype.is_floating_point) or (wire and small and op in (SUM, AVG)):
                    continue
                for step, shape in enumerate([(0,), (1,), (5, 301), (9001,)]):
                    rows = [values(rank, other, shape, dtype, step) for other in range(rank.world_size)]
                    result = rank.wait(state.all_reduce(rows[rank.number].clone(), op))
                    assert_same(result, by_torch(rank, rows, op), (wire, dtype, op, shape))
        row = torch.tensor([1.0, NAN, -0.0, INF]) if rank.number else torch.tensor([NAN, 1.0, 0.0, -INF])
        for op, last in ((MIN, -INF), (MAX, INF), (PRODUCT, -INF)):
            result = rank.wait(state.all_reduce(row.clone(), op))
            assert result[:2].isnan().all(), (op, "NaN propagates")
            assert result[2:].tolist() == [0.0, last]
        with pytest.raises(Exception, match="use SUM"):
            state.all_reduce(torch.ones(3, dtype=torch.uint8), AVG)


def values(rank, other, shape, dtype, step):
    if dtype is torch.bool:
        return rank.values(other, shape, step=step) > 0
    return rank.values(other, shape, dtype, step)


def by_torch(rank, rows, op):
    dtype = rows[0].dtype
    if dtype is torch.bool:
        reduce = torch.logical_and if op in (MIN, PRODUCT) else torch.logical_or
    elif op in (SUM, AVG):
        return rank.fold(rows, op)
    else:
        reduce = {"MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul}[op.name]
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    result = rows[0].to(wide)
    for row in rows[1:]:
        result = reduce(result, row.to(wide))
    return result.to(dtype)


def disagree(rank, reducers, job, wires):
    with rank.state(reducers, job, wire_dtype=wires[rank.number], join_timeout_s=20) as state:
        error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(1024))))
        assert state.error is error
        return error


def one_sum(rank, reducers, job, wire):
    """Sum, and stay until the test has read the bytes on the wire."""
    with rank.state(reducers, job, wire_dtype=wire) as state:
        rank.wait(state.all_reduce(rank.values(rank.number, (256 * KIB,))))
        rank.tell("done")
        rank.hear()


# ---- tests ----


@pytest.mark.usefixtures("plane")
def test_sums_match_the_codecs_results(ranks, reducers, job):
    ranks.run(3, sums, reducers(2), job, WIRES, SIZES, {"chunk_bytes": 4 * KIB}, group=False)


@pytest.mark.parametrize(("k", "chunk_bytes"), [(1, KIB), (3, 64 * KIB)])
def test_sums_do_not_depend_on_chunking_and_sharding(ranks, reducers, job, k, chunk_bytes):
    """All results are the codecs' result for the whole tensor."""
    ranks.run(3, sums, reducers(k), job, WIRES, SIZES[-2:], {"chunk_bytes": chunk_bytes}, group=False)


def test_ranks_on_different_planes(ranks, reducers, job):
    arguments = reducers(2), job
    ranks.run(2, on_its_own_plane, *arguments, group=False)


def on_its_own_plane(rank, reducers, job):
    settings = {"transport": ("tcp", "grpc")[rank.number]}
    sums(rank, reducers, job, ("int8", "topk"), SIZES[-2:], settings)


def test_shapes_and_16_bit_tensors(ranks, reducers, job):
    ranks.run(3, shapes_and_small_dtypes, reducers(2), job, group=False)


def test_inference_mode_tensors_and_parameters(ranks, reducers, job):
    ranks.run(2, unusual_tensors, reducers(2), job, group=False)


@pytest.mark.usefixtures("plane")
def test_inf_and_nan(ranks, reducers, job):
    seen, other = ranks.run(2, special_values, reducers(2), job, group=False)
    assert seen == other
    assert seen["bf16"] == [[3, 601], [600]]
    assert seen["fp16"] == [[3, 601, 1100, 1101], [600]]
    blocks = [*range(256), *range(512, 768)]
    assert seen["int8"] == [[], blocks]
    assert seen["fp8"] == [[], blocks]
    assert seen["topk"] == [[3, 601], [600]]


@pytest.mark.parametrize("group", [True, False])
def test_topk_ratios_that_differ_are_an_error_that_names_the_rank(ranks, reducers, job, group):
    for text in ranks.run(3, two_ratios, reducers(2), job, group=group):
        assert "rank 1 sends 256 elements" in text or "rank 1 sends 256: set the same wire_dtype" in text


@pytest.mark.parametrize("wire", [None, "bf16", "fp16", "int8", "topk"])
def test_other_dtypes_and_ops_are_exact(ranks, reducers, job, wire):
    ranks.run(3, untouched, reducers(2), job, wire, group=False)


@pytest.mark.parametrize(
    ("wires", "names"),
    [(("bf16", "int8"), ("bfloat16", "int8_block")), ((None, "bf16"), ("float32", "bfloat16"))],
)
def test_different_wire_dtypes_fail(ranks, reducers, job, wires, names):
    for error in ranks.run(2, disagree, reducers(2), job, wires, group=False):
        assert type(error) is CollectiveMismatch
        for text in (*(f"x {name} " for name in names), "rank 0", "rank 1"):
            assert text in str(error), f"{text!r} is not in {error}"


def test_bytes_on_the_wire(ranks, reducers, job):
    """Compare the bytes of four ranks' tensors, summed over both reducers, in each direction."""
    addresses = reducers(2)
    counts = {}
    for wire in (None, "bf16", "fp16", "int8", "fp8", "topk"):
        name = f"{job}-{wire}"
        call = ranks.begin(4, one_sum, addresses, name, wire, group=False)
        for number in range(4):
            call.hear(number)
        seen = [one for address in addresses for one in status_of(address)["jobs"] if one["job"] == name]
        for number in range(4):
            call.tell(number, "go")
        call.answers()
        counts[wire] = [sum(one[key] for one in seen) for key in ("received_bytes", "sent_bytes")]
    assert counts[None] == [4 * 4 * 256 * KIB] * 2
    assert counts["bf16"] == counts["fp16"] == [4 * 2 * 256 * KIB] * 2
    assert counts["int8"] == counts["fp8"] == [4 * 1024 * (4 + 256)] * 2
    assert 3.8 * counts["int8"][0] <= counts[None][0]
    assert counts["topk"][0] == 4 * 512 * 5 * 4
    assert 15 * sum(counts["topk"]) <= sum(counts[None])

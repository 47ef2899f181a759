"""Hierarchical mode: a fold over nodes of the folds within nodes; the network carries one copy per node."""

from __future__ import annotations

import pytest
import torch
from support.expected.hierarchical import OPS, be_launched, of_nodes
from support.expected.lossy import Feedback
from support.processes.reducers import status_of

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool)


def values(rank: int, numel: int, dtype: torch.dtype, step: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    if dtype is torch.bool:
        return torch.rand(numel, generator=generator) < 0.5
    if dtype.is_floating_point:
        return (torch.randn(numel, generator=generator) * 10.0 ** (rank % 3)).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, (numel,), generator=generator, dtype=dtype)


# ---- in the ranks ----


def everything(rank, reducers, job, size, floats, integers):
    """Run all ops and all sizes, with all of them in flight at the same time."""
    be_launched(rank, size)
    numels = [0, 1, size - 1, size, size + 1, 7, 1000, 30_011]
    with rank.state(reducers, job, local_group="auto", chunk_bytes=4096) as state:
        waits = []
        for dtype in (*floats, *integers):
            for op in OPS:
                if op == "AVG" and dtype in integers:
                    continue
                for step, numel in enumerate(numels):
                    all_ranks = [values(other, numel, dtype, step) for other in range(rank.world_size)]
                    tensor = all_ranks[rank.number].clone()
                    expected = of_nodes(all_ranks, size, op)
                    waits.append((state.all_reduce(tensor, OPS[op]), tensor, expected, (dtype, op, numel)))
        for future, tensor, expected, what in waits:
            assert rank.wait(future).data_ptr() == tensor.data_ptr()
            assert torch.equal(tensor.isnan(), expected.isnan()), what
            assert torch.equal(tensor.nan_to_num(), expected.nan_to_num()), what


def shapes(rank, reducers, job, size):
    """Sum tensors that DDP never creates: no dimensions, from inference mode, a slice, a strided single element."""
    with rank.state(reducers, job, local_group=size) as state:
        scalar = torch.tensor(float(rank.number))
        with torch.inference_mode():
            inferred = torch.full((3, 5), float(rank.number))
        whole = torch.zeros(100)
        part = whole[10:21].fill_(rank.number)
        column = torch.full((1, 2), float(rank.number))[:, 0]
        for tensor in (scalar, inferred, part, column, torch.zeros(0)[::2]):
            rank.wait(state.all_reduce(tensor))
            assert tensor.is_inference() or tensor._version == (tensor is part), "it has been counted up"
            assert torch.equal(tensor, torch.full_like(tensor, sum(range(rank.world_size))))
        assert not whole[:10].any()
        assert not whole[21:].any()


def lossy(rank, reducers, job, wire, size):
    """Compute plain sums in compressed formats: no error feedback, and blocks start with the tensor."""
    with rank.state(reducers, job, local_group=size, wire_dtype=wire) as state:
        for step, numel in enumerate((0, 1, 255, 257, 511, 5000)):
            for dtype in (torch.float32, torch.bfloat16):
                all_ranks = [values(other, numel, dtype, step) for other in range(rank.world_size)]
                tensor = all_ranks[rank.number].clone()
                rank.wait(state.all_reduce(tensor, OPS["AVG"]))
                expected = Feedback(wire, rank.world_size, size).mean(0, all_ranks)
                assert torch.equal(tensor, expected), (numel, dtype)


def counted(rank, reducers, job, size, numel):
    """Sum once, and wait until the reducers' byte counts have been read."""
    with rank.state(reducers, job, local_group=size) as state:
        tensor = values(rank.number, numel, torch.float32)
        rank.wait(state.all_reduce(tensor))
        rank.tell("done")
        rank.hear()


def settled(rank, reducers, job, launched, settings):
    """Return the outcome of a state with settings that differ per rank, and whether it is flat."""
    be_launched(rank, launched[rank.number])
    with rank.state(reducers, job, join_timeout_s=10, **settings[rank.number]) as state:
        tensor = values(rank.number, 1001, torch.float32)
        error = rank.error_of(lambda: rank.wait(state.all_reduce(tensor)))
        if error is not None:
            return type(error).__name__, str(error)
        rank.wait(state.all_reduce(torch.ones(5)))
        all_ranks = [values(other, 1001, torch.float32) for other in range(rank.world_size)]
        is_flat = torch.equal(tensor, rank.fold(all_ranks, OPS["SUM"]))
        assert is_flat or torch.equal(tensor, of_nodes(all_ranks, 2))
        return "flat" if is_flat else "nodes", ""


def without_a_group(rank, reducers, job, local_group):
    with rank.state(reducers, job, local_group=local_group) as state:
        return rank.error_of(lambda: rank.round(state))


def several_states(rank, reducers, job, size):
    """Use several states in turn and side by side, some of them dropped without close()."""
    for life in range(2):
        states = [rank.state(reducers, f"{job}-{life}-{number}", local_group=size) for number in range(2)]
        states.append(rank.state(reducers, f"{job}-{life}-flat"))
        for step in range(2):
            tensors = [values(rank.number, 1001, torch.float32, step) for _ in states]
            futures = [state.all_reduce(tensor) for state, tensor in zip(states, tensors, strict=True)]
            for future in futures:
                rank.wait(future)
            assert torch.equal(tensors[0], tensors[1])
            torch.testing.assert_close(tensors[0], tensors[2])
        if life:
            for state in states:
                state.close()


# ---- tests ----


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("floats", [True, False], ids=["floating point", "integers"])
def test_sums_are_the_fold_over_nodes_of_the_folds_in_the_nodes(ranks, reducers, job, floats):
    ranks.run(4, everything, reducers(2), job, 2, FLOATS if floats else (), () if floats else INTEGERS)


@pytest.mark.usefixtures("plane")
def test_nodes_of_four(ranks, reducers, job):
    ranks.run(8, everything, reducers(2), job, 4, (torch.float32, torch.bfloat16), (torch.int8,))


def test_tensors_that_ddp_never_makes(ranks, reducers, job):
    ranks.run(4, shapes, reducers(2), job, 2)


@pytest.mark.parametrize("wire", ["bf16", "fp16", "int8", "fp8", "topk", "topk:0.1"])
def test_sums_in_compressed_formats(ranks, reducers, job, wire):
    ranks.run(4, lossy, reducers(2), job, wire, 2)


@pytest.mark.parametrize("size", [2, 4])
def test_reducers_get_and_send_one_copy_per_node(ranks, reducers, job, size):
    numel, addresses = 100_000, reducers(2)
    seen = {}
    for mode in (1, size):
        call = ranks.begin(2 * size, counted, addresses, f"{job}-{mode}", mode, numel)
        for rank in range(2 * size):
            call.hear(rank)
        jobs = [one for address in addresses for one in status_of(address)["jobs"]]
        ours = [one for one in jobs if one["job"].startswith(f"{job}-{mode}")]
        assert len({one["job"] for one in ours}) == mode
        seen[mode] = [sum(one[what] for one in ours) for what in ("received_bytes", "sent_bytes")]
        for rank in range(2 * size):
            call.tell(rank, "go on")
        call.answers()
    assert seen[1] == [2 * size * numel * 4] * 2
    assert seen[size] == [2 * numel * 4] * 2  # for 2 nodes


FLAT, NODES = ("flat", ""), ("nodes", "")


@pytest.mark.parametrize(
    ("launched", "setting", "outcome"),
    [
        ([2, 2, 2, 2], "auto", NODES),
        ([None] * 4, "auto", FLAT),
        ([1] * 4, "auto", FLAT),
        ([4] * 4, "auto", FLAT),
        ([2, 2, 1, 1], "auto", FLAT),
        ([2, 2, 2, None], "auto", FLAT),
        ([3] * 4, "auto", FLAT),
        ([None] * 4, 2, NODES),  # whatever the launcher reports
        ([4] * 4, 2, NODES),
        ([2] * 4, 1, FLAT),
        ([2] * 4, None, FLAT),
    ],
)
def test_how_nodes_are_determined(ranks, reducers, job, launched, setting, outcome):
    settings = [{"local_group": setting}] * 4
    assert ranks.run(4, settled, reducers(1), job, launched, settings) == [outcome] * 4


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ((2, 4, 2, 2), "local_group is 2 on rank 0 and 4 on rank 1: it must be the same on all ranks"),
        (
            (2, 2, 2, "auto"),
            "local_group is 2 on rank 0 and 'auto' on rank 3: it must be the same on all ranks",
        ),
        ((2, 2, 2, None), "local_group is 2 on rank 0 and None on rank 3: it must be the same on all ranks"),
        ((None, 2, 2, 2), "local_group is None on rank 0 and 2 on rank 1: it must be the same on all ranks"),
        ((3, 3, 3, 3), "local_group is 3, but the world size 4 is not a multiple of it"),
    ],
)
def test_invalid_groups_are_refused(ranks, reducers, job, groups, text):
    settings = [{"local_group": group} for group in groups]
    for kind, message in ranks.run(4, settled, reducers(1), job, [2] * 4, settings):
        assert kind == "ConfigError"
        assert message.startswith(text)


def test_the_embedded_reducer(ranks, monkeypatch):
    settings = [{"local_group": 2}] * 4
    assert ranks.run(4, settled, None, None, [2] * 4, settings) == [NODES] * 4


def test_without_a_process_group(ranks, reducers, job):
    for error in ranks.run(4, without_a_group, reducers(1), job, 2, group=False):
        assert type(error).__name__ == "ConfigError"
        assert "initialise torch.distributed" in str(error)
    assert ranks.run(4, without_a_group, reducers(1), f"{job}-auto", "auto", group=False) == [None] * 4


def test_several_states(ranks, reducers, job):
    ranks.run(4, several_states, reducers(2), job, 2)


def test_the_job_token_is_valid_for_its_rails(ranks, serve, job, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{job}:{'t' * 32}\n")
    tokens.chmod(0o600)
    reducer = serve("--token-file", str(tokens))
    settings = [{"local_group": 2, "token_file": str(tokens)}] * 4
    assert ranks.run(4, settled, [reducer.address], job, [2] * 4, settings) == [NODES] * 4

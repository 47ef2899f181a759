"""DistributedDataParallel in hierarchical mode: every case gives the fold over nodes of the folds within nodes.

The cases and the reference are those of test_wire_dtypes_ddp.py, but here the ranks form nodes of two.
"""

from __future__ import annotations

import pytest
import torch
from integration.ddp.test_ddp import Perceptron, build, digest, loss_of, sgd
from integration.ddp.test_wire_dtypes_ddp import CASES
from integration.ddp.test_wire_dtypes_ddp import train as train_and_check
from integration.ddp.test_wire_dtypes_ddp import train_and_save as train_and_save_flat
from support.expected.hierarchical import be_launched
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import reduction_hook

SIZE = 2


class Given(nn.Module):
    """A model whose gradients are integers, different on each rank, with exact sums in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(numel) for numel in (1, 3, 1000, 77_777))

    def forward(self, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        given = [torch.randint(-1000, 1000, part.shape, generator=generator) for part in self.parts]
        return torch.stack([(part * one).sum() for part, one in zip(self.parts, given, strict=True)]).sum()


# ---- in the ranks ----


def train(rank, reducers, job, wire, name, size):
    return train_and_check(rank, reducers, job, wire, name, size)


def train_and_save(rank, reducers, job, wire, steps, resume, save, with_residuals, size):
    return train_and_save_flat(rank, reducers, job, wire, steps, resume, save, with_residuals, size)


def beside_plain_ddp(rank, reducers, job, size):
    """Train the same models with Gloo's all-reduce and with ours."""
    be_launched(rank, size)
    with rank.state(reducers, job, local_group="auto") as state:
        for make, is_exact in ((Given, True), (Perceptron, False)):
            plain, ours = (DistributedDataParallel(model, bucket_cap_mb=0.1) for model in build(make))
            ours.register_comm_hook(state, reduction_hook)
            optimizers = sgd(plain), sgd(ours)
            for step in range(3):
                for ddp, optimizer in zip((plain, ours), optimizers, strict=True):
                    optimizer.zero_grad()
                    loss = ddp(rank.number, step) if is_exact else loss_of(ddp, rank.number, step)
                    loss.backward()
                for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
                    if is_exact:
                        assert torch.equal(one.grad, other.grad)
                    else:
                        torch.testing.assert_close(one.grad, other.grad)
                for optimizer in optimizers:
                    optimizer.step()
    return digest(ours)


# ---- tests ----


@pytest.mark.parametrize("size", [2, 4])
def test_results_match_plain_ddp(ranks, reducers, job, size):
    digests = ranks.run(2 * size, beside_plain_ddp, reducers(2), job, size)
    assert len(set(digests)) == 1


@pytest.mark.parametrize("wire", [None, "int8"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_fold_over_nodes(ranks, reducers, job, wire, name):
    digests = ranks.run(2 * SIZE, train, reducers(2), job, wire, name, SIZE)
    assert len(set(digests)) == 1


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("wire", [None, "topk:0.1", "bf16", "fp8"])
def test_gradients_in_other_formats_on_either_plane(ranks, reducers, job, wire):
    digests = ranks.run(2 * SIZE, train, reducers(2), job, wire, "rebuild, small chunks", SIZE)
    assert len(set(digests)) == 1


def test_resuming_from_a_checkpoint_changes_no_bit(ranks, reducers, job, tmp_path):
    """DDP's buckets differ at first after resuming, but which rank encodes what does not depend on them."""
    file = str(tmp_path / "checkpoint")
    count = 2 * SIZE

    def run(life, *arguments, with_residuals=True, **settings):
        arguments = reducers(2), f"{job}-{life}", "int8", *arguments, with_residuals, SIZE
        return ranks.run(count, train_and_save, *arguments, **settings)

    whole = run("whole", 6, None, None)
    run("first", 3, None, file)
    assert run("resumed", 3, file, None, first=count) == whole
    assert run("without", 3, file, None, with_residuals=False, first=count) != whole

"""DistributedDataParallel on a GPU that the ranks share: the cases of integration/ddp/test_ddp.py, bit for bit."""

from __future__ import annotations

import pytest
import torch
from integration.ddp.test_ddp import CASES, train, train_two_modules


def train_on_gpu(rank, reducers, job, name):
    be_deterministic()
    return train(rank, reducers, job, name, device="cuda:0")


def train_two_on_gpu(rank, reducers, job, share):
    be_deterministic()
    return train_two_modules(rank, reducers, job, share, device="cuda:0")


def be_deterministic():
    """All ranks compute all ranks' gradients, and must get the same."""
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_fold_of_all_ranks(ranks, reducers, job, name):
    case = CASES[name]
    assert len(set(ranks.run(case.ranks, train_on_gpu, reducers(case.reducers), job, name))) == 1


@pytest.mark.parametrize("share", [True, False])
def test_two_modules(ranks, reducers, job, share):
    digests = ranks.run(2, train_two_on_gpu, reducers(2), job, share)
    assert digests[0] == digests[1]

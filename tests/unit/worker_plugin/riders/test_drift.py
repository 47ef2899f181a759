"""Ranks that compare their weights: who is notified of a difference, when, and how."""

import pytest
import torch
from reduction.errors import ConfigError, ReplicasDiffer
from torch import nn

from worker_plugin.riders.drift import Watch


class Ranks:
    """Ranks that take their steps in turn; a sum is done when all have asked for it."""

    def __init__(self, count, every, *, with_optimizer=False):
        torch.manual_seed(0)
        self.models = [
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)) for _ in range(count)
        ]
        for model in self.models[1:]:
            model.load_state_dict(self.models[0].state_dict())
            model[0].weight.requires_grad = False
        self.optimizers = [torch.optim.Adam(model.parameters(), 0.1) for model in self.models]
        self.names = [str(10 + rank) for rank in range(count)]
        self.tables = []
        self.watches = [
            Watch(
                model,
                every,
                optimizer if with_optimizer else None,
                self.all_reduce,
                lambda rank=rank: (self.names, rank),
            )
            for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True))
        ]

    def all_reduce(self, table):
        """Add up the tables once all ranks have submitted theirs, which they do before any waits."""
        self.tables.append(table)
        if len(self.tables) == len(self.watches):
            total = sum(self.tables)
            for one in self.tables:
                one.copy_(total)
            self.tables.clear()
        return self

    def wait(self):
        """Do what `Waitable` says."""

    def step(self):
        """Train a step; return each rank's error, or None."""
        errors = []
        for watch, model, optimizer in zip(self.watches, self.models, self.optimizers, strict=False):
            try:
                watch.step()
                errors.append(None)
            except ReplicasDiffer as error:
                errors.append(str(error))
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return errors


def flip(tensor, bit=22):
    with torch.no_grad():
        tensor.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << bit)


def test_identical_ranks_get_no_error():
    ranks = Ranks(3, every=2, with_optimizer=True)
    ranks.models[1][1].running_mean.add_(1)  # which DDP allows to differ
    assert all(ranks.step() == [None] * 3 for _ in range(9))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("flipped_in", range(1, 5))
def test_all_ranks_learn_of_a_flipped_bit_in_the_same_step(every, flipped_in):
    ranks = Ranks(4, every)
    for step in range(1, flipped_in + every + 2):
        if step == flipped_in:
            flip(ranks.models[2][2].weight)
        errors = ranks.step()
        compared_in = -(-flipped_in // every) * every
        if step <= compared_in:
            assert errors == [None] * 4
            continue
        before = f"; {every} steps before they were alike" if compared_in > every else ""
        assert (
            errors
            == [
                f"ranks 12 do not have the weights of ranks 10, 11, 13: 2.weight differ in step {compared_in} of this "
                f"process{before}. Go on from a checkpoint of a time before that"
            ]
            * 4
        )
        break


def test_each_flipped_bit_of_a_number_is_found():
    for bit in range(32):
        ranks = Ranks(2, every=1)
        flip(ranks.models[1][0].bias, bit)
        ranks.step()
        assert all(
            "ranks 11 do not have the weights of ranks 10: 0.bias differ" in error for error in ranks.step()
        )


def test_the_first_differing_tensor_is_named_and_the_majority_is_right():
    ranks = Ranks(5, every=1)
    flip(ranks.models[0][1].weight)
    flip(ranks.models[4][0].bias)
    flip(ranks.models[4][2].bias)
    ranks.step()
    [error, *_] = ranks.step()
    assert error.startswith(
        "ranks 10, 14 do not have the weights of ranks 11, 12, 13: 0.bias and 2 more of 6 tensors differ in step 1"
    )


def test_tensors_of_the_optimizer():
    ranks = Ranks(2, every=1, with_optimizer=True)
    assert ranks.step() == [None, None]
    flip(ranks.optimizers[1].state[ranks.models[1][2].bias]["exp_avg_sq"])
    assert ranks.step() == [None, None]
    assert all("ranks 10: exp_avg_sq of 2.bias differ in step 2" in error for error in ranks.step())


def test_a_lost_rank_is_not_compared():
    """A sum over the remaining workers has no row for the lost one."""
    ranks = Ranks(3, every=1)
    del ranks.watches[2]
    assert [ranks.step(), ranks.step()] == [[None] * 2] * 2


def test_the_step_count_can_be_restarted():
    ranks = Ranks(2, every=3)
    ranks.step()
    for watch in ranks.watches:
        watch.count_again()
    flip(ranks.models[0][0].bias)
    assert [ranks.step() for _ in range(3)] == [[None, None]] * 3
    for watch in ranks.watches:
        watch.forget()  # discards the request to another communicator
    assert [ranks.step() for _ in range(3)] == [[None, None]] * 3
    assert None not in ranks.step()


def test_only_the_local_piece_of_a_sharded_tensor_is_compared():
    class Pieces(nn.Parameter):
        def to_local(self):
            return self.data[:1]

    ranks = Ranks(2, every=1)
    for model in ranks.models:
        model[2].bias = Pieces(model[2].bias.data)
    with torch.no_grad():
        ranks.models[0][2].bias.data[1] += 1
    ranks.step()
    assert ranks.step() == [None, None]


@pytest.mark.parametrize(
    ("model", "every", "optimizer", "text"),
    [
        (nn.ReLU(), 1, None, "a ReLU has no parameters"),
        ("model", 1, None, "a str has no parameters"),
        (nn.Linear(1, 1), 0, None, "every is 0"),
        (nn.Linear(1, 1), 2.0, None, "every is 2.0"),
        (nn.Linear(1, 1), True, None, "every is True"),
        (nn.Linear(1, 1), 1, nn.ReLU(), "the optimizer is a ReLU"),
    ],
)
def test_wrong_arguments_are_refused(model, every, optimizer, text):
    with pytest.raises(ConfigError, match=text):
        Watch(model, every, optimizer, None, None)

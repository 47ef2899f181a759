"""Replay of another worker's steps by a newcomer, which ends with the same bits."""

import copy

import pytest
import torch
from reduction.errors import ConfigError
from torch import nn

from worker_plugin.elastic.newcomers.training import Training, describe


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def training(make=torch.optim.Adam, seed: int = 0, **options: object) -> Training:
    torch.manual_seed(seed)
    net = model()
    return Training(net, make(net.parameters(), 0.01, **options), {})


def gradients(one: Training) -> None:
    one.model(torch.randn(8, 5)).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(one.model.parameters(), 0.1)


def equal(one: Training, other: Training) -> bool:
    ours, theirs = one.state(), other.state()
    momenta = [
        [value for _, state in sorted(each["optimizer"]["state"].items()) for value in state.values()]
        for each in (ours, theirs)
    ]
    return all(
        torch.equal(a, b) for a, b in zip(ours["model"].values(), theirs["model"].values(), strict=True)
    ) and all(torch.equal(a, b) for a, b in zip(*momenta, strict=True))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Rprop, {}),
    ],
)
def test_repeated_steps_have_the_same_bits(make, options):
    ours, theirs = training(make, 0, **options), training(make, 1, **options)
    gradients(ours)
    ours.optimizer.step()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(ours.optimizer, 0.9)
    theirs.take(copy.deepcopy(ours.state()))
    assert theirs.optimizer.param_groups[0]["initial_lr"] == 0.01, "the scheduler has added it"
    for number in range(5):
        ours.optimizer.zero_grad()
        gradients(ours)
        if number == 3:
            ours.model[0].bias.grad = None  # an optimizer leaves such a parameter unchanged
        theirs.repeat(copy.deepcopy(ours.step()))
        ours.optimizer.step()
        scheduler.step()
        assert all(parameter.grad is None for parameter in theirs.model.parameters())
    # The norm's running means and the rate for the next step have changed; the rest includes both.
    theirs.take_rest(copy.deepcopy(ours.rest()))
    assert theirs.digest() == ours.digest()
    assert equal(ours, theirs)
    assert theirs.optimizer.param_groups[0]["lr"] == ours.optimizer.param_groups[0]["lr"]


def test_weights_changed_outside_of_steps_are_noticed():
    ours, theirs = training(), training()
    theirs.take_rest(copy.deepcopy(ours.rest()))
    assert theirs.digest() == ours.digest()
    gradients(ours)
    theirs.repeat(copy.deepcopy(ours.step()))
    ours.optimizer.step()
    with torch.no_grad():
        ours.model[3].weight[1, 2].clamp_(0, 0.001)
    theirs.take_rest(copy.deepcopy(ours.rest()))
    assert theirs.digest() != ours.digest()
    theirs.take(copy.deepcopy(ours.state()))
    theirs.take_rest(copy.deepcopy(ours.rest()))
    assert theirs.digest() == ours.digest()


def test_sparse_gradients_yield_no_step():
    embedding = nn.Embedding(10, 3, sparse=True)
    one = Training(embedding, torch.optim.SparseAdam(embedding.parameters()), {})
    embedding(torch.tensor([1, 2])).sum().backward()
    assert one.step() is None


def test_training_without_an_optimizer():
    ours, theirs = (Training(training(seed=seed).model, None, {}) for seed in (0, 1))
    assert describe(ours.model) == describe(theirs.model) != describe(nn.Linear(5, 4))
    theirs.take_rest(ours.rest())
    assert theirs.digest() != ours.digest()
    theirs.take(ours.state())
    theirs.take_rest(ours.rest())
    assert theirs.digest() == ours.digest()


def test_steps_are_repeated_without_the_hooks_of_the_optimizer():
    """The hooks are restored, even after a step that fails."""
    ours, theirs = training(), training()
    calls = []
    for register in (theirs.optimizer.register_step_pre_hook, theirs.optimizer.register_step_post_hook):
        register(lambda *_: calls.append(1))
    gradients(ours)
    step = copy.deepcopy(ours.step())
    theirs.repeat(copy.deepcopy(step))
    step["gradients"][0] = torch.zeros(1)
    with pytest.raises(ConfigError):
        theirs.repeat(step)
    assert not calls
    gradients(theirs)
    theirs.optimizer.step()
    assert len(calls) == 2


def test_step_callbacks_run_until_removed():
    ours, calls = training(), []
    handle = ours.before_steps(lambda *_: calls.append(1))
    gradients(ours)
    ours.optimizer.step()
    handle.remove()
    ours.optimizer.step()
    assert len(calls) == 1
    assert Training(ours.model, None, {}).before_steps(print) is None

    class LooksLikeAnOptimizer:
        param_groups = ()

    assert Training(ours.model, LooksLikeAnOptimizer(), {}).before_steps(print) is None


def test_all_that_the_optimizer_changes_must_be_in_the_model():
    net, loss = model(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD([*net.parameters(), *loss.parameters()], 0.1)
    Training(nn.ModuleList([net, loss]), optimizer, {}).check()
    Training(net, None, {}).check()
    with pytest.raises(ConfigError, match=r"2 parameters that are not in the model, one of shape \(2, 3\)"):
        Training(net, optimizer, {}).check()


class Cached(nn.Module):
    def __init__(self, size: int = 2, dtype=torch.float32, *, persistent: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("cache", torch.arange(size).to(dtype), persistent)
        self.register_buffer("later", None, persistent=False)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("by", ["take", "take_rest"])
def test_buffers_come_with_their_shapes(by, persistent):
    ours, theirs = (Training(Cached(size, persistent=persistent), None, {}) for size in (5, 2))
    ours.model.later = torch.ones(3)
    ours.model.linear.register_buffer("new", torch.ones(1, dtype=torch.int32), persistent=False)
    own = theirs.model.cache
    if by == "take":
        theirs.take(copy.deepcopy(ours.state()))
    else:
        theirs.take_rest(copy.deepcopy(ours.rest()))
    assert theirs.model.cache.tolist() == [0, 1, 2, 3, 4]
    assert theirs.model.cache is own  # so that all references see it
    assert theirs.model.later.tolist() == [1, 1, 1]
    assert torch.equal(theirs.model.linear.new, ours.model.linear.new)
    assert list(theirs.model.state_dict()) == list(ours.model.state_dict())
    if by == "take":
        assert theirs.digest() == ours.digest()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: Cached(dtype=torch.float16),
            "buffer cache is torch.float16 with persistent=False .* torch.float32",
        ),
        (
            lambda: Cached(persistent=True),
            "buffer cache is torch.float32 with persistent=True .* persistent=False",
        ),
        (lambda: nn.Linear(2, 2), "no attribute `linear`"),
    ],
)
def test_mismatched_buffers_are_refused(model, message):
    ours = Training(Cached(), None, {})
    ours.model.linear.register_buffer("new", torch.ones(1))
    with pytest.raises(ConfigError, match=message):
        Training(model(), None, {}).take_buffers(ours.buffers())


def test_a_model_that_cannot_load_a_state_is_an_error():
    ours, theirs = training(), training()
    theirs.model.register_load_state_dict_post_hook(lambda *_: 1 / 0)
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        theirs.take(ours.state())


def test_a_state_that_cannot_be_sent_is_noticed_before_it_is_needed():
    ours = training()
    ours.check()
    ours.optimizer.param_groups[0]["note"] = print
    with pytest.raises(ConfigError, match=r"builtin_function.* at optimizer.param_groups.0.note"):
        ours.check()


def test_the_state_of_an_optimizer_keeps_its_dtypes():
    """torch casts the state to the dtypes of the parameters when it loads it."""
    ours, theirs = training(), training(seed=1)
    for one in (ours, theirs):
        one.model.to(torch.bfloat16)
    ours.model(torch.randn(8, 5, dtype=torch.bfloat16)).sum().backward()
    ours.optimizer.step()
    for state in ours.optimizer.state.values():
        state["exp_avg"] = torch.full_like(state["exp_avg"], 1 / 3, dtype=torch.float32)
    theirs.take(copy.deepcopy(ours.state()))
    assert equal(ours, theirs)
    theirs.take_rest(ours.rest())
    assert theirs.digest() == ours.digest()

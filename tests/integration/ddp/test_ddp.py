"""DistributedDataParallel through reducers: every case gives the rank-order fold of the local gradients.

Next to the DDP model, each rank trains a reference without DDP. It computes all ranks' gradients on the same data,
folds them in rank order, and takes the same optimizer step. The gradients of every step and the final weights must
have the same bits on every rank.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import reduction_hook

STEPS = 4
WIDTH = 12


# ---- models; each takes (batch, WIDTH) and the rank's number ----


class Perceptron(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 40), nn.ReLU(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))

    def forward(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        return super().forward(x)


class Branches(nn.Module):
    """A model whose ranks use different branches, and whose last branch is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(WIDTH, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        return self.branches[rank % 2](self.trunk(x))


class Bfloat16(Perceptron):
    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        return super().forward(x.bfloat16())


class Mixed(nn.Module):
    """A model with float32, bfloat16 and float64 parameters: DDP makes buckets for each dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 20)
        self.second = nn.Linear(20, 10, dtype=torch.bfloat16)
        self.third = nn.Linear(10, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        return self.third(self.second(self.first(x).bfloat16().relu()).double())


class Tiny(nn.Module):
    """A model with fewer elements than there are reducers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        return x[:, :2] * self.weight


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 6, 3)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6 * (WIDTH - 2), 3)

    def forward(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        return self.head(self.norm(self.convolution(x[:, None])).relu().flatten(1))


@dataclass(frozen=True)
class Case:
    ranks: int = 3
    reducers: int = 2
    model: Callable[[], nn.Module] = Perceptron
    ddp: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    #: Number of backward passes per step; all but the last are under no_sync.
    backwards: int = 1
    clip: float | None = None
    set_to_none: bool = True
    #: Allowed number of calls of the hook per step, from the third step on.
    buckets: range = range(1, 2)


CASES = {
    "default": Case(),
    "two ranks": Case(ranks=2),
    "four ranks": Case(ranks=4),
    "convolution": Case(ranks=2, model=Convolution),
    "gradient_as_bucket_view": Case(ddp={"gradient_as_bucket_view": True}),
    "bucket view, zeroed in place": Case(ddp={"gradient_as_bucket_view": True}, set_to_none=False),
    "static_graph": Case(ddp={"static_graph": True}),
    "static_graph and bucket view": Case(ddp={"static_graph": True, "gradient_as_bucket_view": True}),
    "find_unused_parameters": Case(model=Branches, ddp={"find_unused_parameters": True}),
    "unused, nothing unused": Case(ddp={"find_unused_parameters": True}),
    "no_sync": Case(backwards=3),
    "no_sync and bucket view": Case(backwards=3, ddp={"gradient_as_bucket_view": True}),
    "bf16": Case(model=Bfloat16),
    "mixed dtypes": Case(model=Mixed, buckets=range(3, 4)),
    "rebuild": Case(ddp={"bucket_cap_mb": 0.001}, buckets=range(2, 8)),
    "rebuild, mixed, small chunks": Case(
        model=Mixed, ddp={"bucket_cap_mb": 0.00001}, state={"chunk_bytes": 1024}, buckets=range(4, 8)
    ),
    "rebuild, static, views": Case(
        ddp={"bucket_cap_mb": 0.001, "static_graph": True, "gradient_as_bucket_view": True},
        buckets=range(2, 8),
    ),
    "clipping": Case(clip=0.01),
    "clipping, views": Case(
        clip=0.01, ddp={"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, buckets=range(2, 8)
    ),
    "fewer elements than reducers": Case(reducers=5, model=Tiny),
    "world size 1": Case(ranks=1),
    "one reducer": Case(ranks=4, reducers=1),
    "five reducers": Case(reducers=5, state={"chunk_bytes": 1024}),
}


# ---- in the ranks ----


def batch(rank: int, step: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1 + 100 * step + 10 * part + rank)
    return torch.randn(4 + rank, WIDTH, generator=generator)


def loss_of(model: nn.Module, rank: int, step: int, part: int = 0) -> torch.Tensor:
    device = next(model.parameters()).device
    return model(batch(rank, step, part).to(device), rank=rank).square().mean()


def local_gradients(model: nn.Module, rank: int, step: int, backwards: int = 1) -> list[torch.Tensor | None]:
    """Return the gradients of this rank's backward pass on a copy of the model without DDP."""
    model = copy.deepcopy(model)
    model.zero_grad()
    for part in range(backwards):
        loss_of(model, rank, step, part).backward()
    return [parameter.grad for parameter in model.parameters()]


def set_folded(rank, reference: nn.Module, contributions: list[list[torch.Tensor | None]]) -> None:
    """Give the reference the mean gradients; a gradient that no rank has stays None, as DDP leaves it."""
    for parameter, column in zip(reference.parameters(), zip(*contributions, strict=True), strict=True):
        if any(gradient is not None for gradient in column):
            dense = [torch.zeros_like(parameter) if gradient is None else gradient for gradient in column]
            parameter.grad = rank.fold(dense)


def assert_same(what: str, ours: nn.Module, reference: nn.Module, gradients: bool) -> None:
    for (name, parameter), expected in zip(ours.named_parameters(), reference.parameters(), strict=True):
        pair = (parameter.grad, expected.grad) if gradients else (parameter.data, expected.data)
        if pair[1] is None:
            assert pair[0] is None or not pair[0].any(), f"{what}: {name} has a gradient that nobody made"
        else:
            assert pair[0].dtype == pair[1].dtype, f"{what}: {name}"
            assert torch.equal(*pair), f"{what}: {name} differs by {(pair[0] - pair[1]).abs().max()}"


def digest(model: nn.Module) -> str:
    data = hashlib.sha256()
    for parameter in model.parameters():
        data.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return data.hexdigest()


def build(model: Callable[[], nn.Module], device: str = "cpu") -> tuple[nn.Module, nn.Module]:
    """Return a model and its reference; the seed is the same on all ranks."""
    torch.manual_seed(5)
    built = model().to(device)
    return built, copy.deepcopy(built)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def clip(model: nn.Module, limit: float) -> None:
    """Do what `clip_grad_norm_` does, but on the CPU: on a GPU the norm's last bit depends on memory addresses."""
    gradients = [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm.to(next(model.parameters()).device))


def train(rank, reducers, job, name, device="cpu"):
    case = CASES[name]
    model, reference = build(case.model, device)
    ddp = DistributedDataParallel(model, **case.ddp)
    calls: list[int] = []

    def counting_hook(state: Any, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        calls[-1] += 1
        return reduction_hook(state, bucket)

    del counting_hook.__annotations__["bucket"], counting_hook.__annotations__["return"]  # strings here
    with rank.state(reducers, job, **case.state) as state:
        ddp.register_comm_hook(state, counting_hook)
        optimizer, reference_optimizer = sgd(ddp), sgd(reference)
        for step in range(STEPS):
            calls.append(0)
            ddp.zero_grad(set_to_none=case.set_to_none)
            reference.zero_grad()
            for part in range(case.backwards - 1):
                with ddp.no_sync():
                    loss_of(ddp, rank.number, step, part).backward()
            assert calls[-1] == 0, "the hook ran under no_sync"
            loss_of(ddp, rank.number, step, case.backwards - 1).backward()
            contributions = [
                local_gradients(reference, other, step, case.backwards) for other in range(rank.world_size)
            ]
            set_folded(rank, reference, contributions)
            assert_same(f"gradients of step {step}", model, reference, gradients=True)
            if case.clip is not None:
                for some in (ddp, reference):
                    clip(some, case.clip)
            optimizer.step()
            reference_optimizer.step()
        assert all(count in case.buckets for count in calls[2:]), calls
        assert_same("weights", model, reference, gradients=False)
        assert state.error is None
    return digest(model)


def train_uneven(rank, reducers, job):
    """Train with 2 + r batches on rank r; ranks that have finished contribute zeros until all have."""
    model, reference = build(Perceptron)
    ddp = DistributedDataParallel(model)
    with rank.state(reducers, job) as state:
        ddp.register_comm_hook(state, reduction_hook)
        optimizer, reference_optimizer = sgd(ddp), sgd(reference)
        with ddp.join():
            for step in range(2 + rank.number):
                ddp.zero_grad()
                loss_of(ddp, rank.number, step).backward()
                contributions = [
                    local_gradients(reference, other, step)
                    if step < 2 + other
                    else [torch.zeros_like(parameter) for parameter in reference.parameters()]
                    for other in range(rank.world_size)
                ]
                set_folded(rank, reference, contributions)
                assert_same(f"gradients of step {step}", model, reference, gradients=True)
                optimizer.step()
                reference_optimizer.step()
        if rank.number == rank.world_size - 1:
            assert_same("weights", model, reference, gradients=False)
    return digest(model)  # join() gives all ranks the weights of the rank that trained longest


def train_two_modules(rank, reducers, job, share, device="cpu"):
    """Train two DDP modules with one loss or one after the other, as in adversarial training or distillation."""
    pairs = [build(Perceptron, device), build(Mixed, device)]
    ddps = [DistributedDataParallel(model, bucket_cap_mb=0.001) for model, _ in pairs]
    states = [rank.state(reducers, f"{job}-{index}") for index in range(1 if share else 2)]
    for index, ddp in enumerate(ddps):
        ddp.register_comm_hook(states[index % len(states)], reduction_hook)
    optimizers = [sgd(model) for pair in pairs for model in pair]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = [loss_of(ddp, rank.number, step) for ddp in ddps]
        if step % 2:
            sum(losses).backward()
        else:
            for loss in losses:
                loss.backward()
        for model, reference in pairs:
            contributions = [local_gradients(reference, other, step) for other in range(rank.world_size)]
            set_folded(rank, reference, contributions)
            assert_same(f"gradients of step {step}", model, reference, gradients=True)
        for optimizer in optimizers:
            optimizer.step()
    for model, reference in pairs:
        assert_same("weights", model, reference, gradients=False)
    return [digest(model) for model, _ in pairs]


def private(rank, reducers, job):
    with rank.state(reducers, job, rank=0, world_size=1) as state:
        rank.round(state)


def train_with_defaults(rank, reducers, again):
    """Take job name, rank and world size from torch.distributed, for each new state."""
    digests = []
    for _ in range(1 + again):
        model, reference = build(Perceptron)
        ddp = DistributedDataParallel(model)
        with rank.state(reducers, None, join_timeout_s=10) as state:
            ddp.register_comm_hook(state, reduction_hook)
            loss_of(ddp, rank.number, 0).backward()
            set_folded(
                rank, reference, [local_gradients(reference, other, 0) for other in range(rank.world_size)]
            )
            assert_same("gradients", model, reference, gradients=True)
        digests.append(digest(model))
    return digests


# ---- tests ----


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_fold_of_all_ranks(ranks, reducers, job, name):
    gradients(ranks, reducers, job, name)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("name", ["default", "mixed dtypes", "rebuild, mixed, small chunks", "five reducers"])
def test_gradients_are_the_fold_of_all_ranks_on_either_plane(ranks, reducers, job, name):
    gradients(ranks, reducers, job, name)


def gradients(ranks, reducers, job, name):
    case = CASES[name]
    digests = ranks.run(case.ranks, train, reducers(case.reducers), job, name)
    assert len(set(digests)) == 1


def test_join_with_uneven_inputs(ranks, reducers, job):
    digests = ranks.run(3, train_uneven, reducers(2), job)
    assert len(set(digests)) == 1


@pytest.mark.parametrize("share", [True, False], ids=["one state", "a state each"])
def test_two_modules_in_one_process(ranks, reducers, job, share):
    answers = ranks.run(2, train_two_modules, reducers(2), job, share)
    assert answers[0] == answers[1]


def test_job_rank_and_world_size_from_torch_distributed(fresh_ranks, reducers):
    answers = fresh_ranks().run(2, train_with_defaults, reducers(2), True)
    assert answers[0] == answers[1]


def test_a_private_communicator_does_not_confuse_the_next_one(ranks, reducers, job):
    """Only rank 0 has created one before, for example for an evaluation; the next one is for all ranks."""
    ranks.run(1, private, reducers(2), job)
    answers = ranks.run(2, train_with_defaults, reducers(2), False)
    assert answers[0] == answers[1]

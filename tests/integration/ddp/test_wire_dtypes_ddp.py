"""DistributedDataParallel with compressed gradients: every case gives the codecs' result for the local gradients.

As in test_ddp.py, each rank trains a reference without DDP next to the DDP model. Here it also keeps all ranks'
residuals by parameter, so a residual that is lost or shifted by a bucket border shows in the bits of the next gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from integration.ddp.test_ddp import Bfloat16, Branches, Mixed, Perceptron, assert_same, batch, digest, sgd
from support.expected.lossy import Feedback
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import reduction_hook

STEPS = 4


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module] = Perceptron
    ddp: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    #: Number of backward passes per step; all but the last are under no_sync.
    backwards: int = 1
    clip: float | None = None
    autocast: bool = False
    #: Minimum number of DDP's buckets, from the third step on.
    buckets: int = 1


CASES = {
    "default": Case(),
    "rebuild, small chunks": Case(ddp={"bucket_cap_mb": 0.001}, state={"chunk_bytes": 1024}, buckets=2),
    "bucket view": Case(ddp={"gradient_as_bucket_view": True}),
    "no_sync and clipping": Case(backwards=3, clip=0.01),
    "unused": Case(model=Branches, ddp={"find_unused_parameters": True}),
    "autocast": Case(autocast=True),
    "bfloat16": Case(model=Bfloat16),
    "mixed dtypes, rebuild": Case(model=Mixed, ddp={"bucket_cap_mb": 0.00001}, buckets=4),
}


# ---- in the ranks ----


def new_model(model: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    return model()


def loss_of(model: nn.Module, rank: int, step: int, part: int = 0, autocast: bool = False) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model(batch(rank, step, part), rank=rank).float().square().mean()


class Reference:
    """The expected model, with the residuals of all ranks."""

    def __init__(self, rank, wire: str, model: nn.Module, case: Case, size: int = 1) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = sgd(self.model)
        self.feedback = Feedback(wire, rank.world_size, size)
        self.case = case

    def set_gradients(self, step: int, active: list[bool]) -> None:
        """Give the model the mean of all ranks' encoded gradients; a gradient that no rank has stays None."""
        columns = [self._local(rank, step, active[rank]) for rank in range(len(active))]
        for number, parameter in enumerate(self.model.parameters()):
            column = [gradients[number] for gradients in columns]
            parameter.grad = None
            if any(gradient is not None for gradient in column):
                zero = torch.zeros_like(parameter)
                column = [zero if gradient is None else gradient for gradient in column]
                parameter.grad = self.feedback.mean(number, column)

    def _local(self, rank: int, step: int, active: bool) -> list[torch.Tensor | None]:
        model = copy.deepcopy(self.model)
        model.zero_grad()
        for part in range(self.case.backwards if active else 0):
            loss_of(model, rank, step, part, self.case.autocast).backward()
        return [parameter.grad for parameter in model.parameters()]

    def check_residuals(self, rank: int, state: Any) -> None:
        """Check the residuals of the state; DDP presents parameters in its own order."""
        of_none = [torch.zeros(parameter.numel()) for parameter in self.model.parameters()]
        ours = [self.feedback.residual_of(rank, number) for number in range(len(of_none))]
        theirs = state.state_dict()["residuals"]
        assert all(one.dtype is torch.float32 for one in theirs)
        expected = [zeros if one is None else one for one, zeros in zip(ours, of_none, strict=True)]
        kept = [one.tolist() for one in theirs]
        for number, one in enumerate(expected):
            assert one.tolist() in kept or not one.any(), f"parameter {number} has another residual"
        if any(one is not None for one in ours) and self.feedback.size == 1:
            assert any(one.any() for one in expected), "nothing was left out: this shows nothing"


def train(rank, reducers, job, wire, name, size=1):
    case = CASES[name]
    model = new_model(case.model)
    reference = Reference(rank, wire, model, case, size)
    ddp = DistributedDataParallel(model, **case.ddp)
    buckets: set[int] = set()

    def counting_hook(state: Any, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buckets.add(bucket.index())
        return reduction_hook(state, bucket)

    del counting_hook.__annotations__["bucket"], counting_hook.__annotations__["return"]  # strings here
    with rank.state(reducers, job, wire_dtype=wire, local_group=size, **case.state) as state:
        ddp.register_comm_hook(state, counting_hook)
        optimizer = sgd(ddp)
        for step in range(STEPS):
            buckets.clear()
            ddp.zero_grad()
            for part in range(case.backwards - 1):
                with ddp.no_sync():
                    loss_of(ddp, rank.number, step, part, case.autocast).backward()
            loss_of(ddp, rank.number, step, case.backwards - 1, case.autocast).backward()
            reference.set_gradients(step, [True] * rank.world_size)
            assert_same(f"gradients of step {step}", model, reference.model, gradients=True)
            reference.check_residuals(rank.number, state)
            if case.clip is not None:
                for some in (ddp, reference.model):
                    nn.utils.clip_grad_norm_(some.parameters(), case.clip)
            optimizer.step()
            reference.optimizer.step()
        assert len(buckets) >= case.buckets
        assert_same("weights", model, reference.model, gradients=False)
        assert state.error is None
    return digest(model)


def train_uneven(rank, reducers, job, wire):
    """Train with 2 + r batches on rank r; ranks that have finished contribute their residuals."""
    model = new_model(Perceptron)
    reference = Reference(rank, wire, model, Case())
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    with rank.state(reducers, job, wire_dtype=wire) as state:
        ddp.register_comm_hook(state, reduction_hook)
        optimizer = sgd(ddp)
        with ddp.join():
            for step in range(2 + rank.number):
                ddp.zero_grad()
                loss_of(ddp, rank.number, step).backward()
                reference.set_gradients(step, [step < 2 + other for other in range(rank.world_size)])
                assert_same(f"gradients of step {step}", model, reference.model, gradients=True)
                optimizer.step()
                reference.optimizer.step()
    return digest(model)


class Constant(nn.Module):
    """A module whose input is the gradient of its weight."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return self.weight @ gradient


def tiny_gradients(rank, reducers, job, wire, sizes, steps):
    """Return the effect of the tiny part of a constant gradient on the weights, relative to the exact one.

    Each block has one large element, next to which these sizes, one per rank, are negligible. Also return how many tiny
    elements arrive without error feedback.
    """
    ddp = DistributedDataParallel(Constant(1100))
    gradient = torch.full((1100,), sizes[rank.number])
    gradient[::256] = 1.0
    tiny = gradient < 1.0
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    with rank.state(reducers, job, wire_dtype=wire) as state:
        ddp.register_comm_hook(state, reduction_hook)
        for _ in range(steps):
            ddp.zero_grad()
            ddp(gradient).backward()
            optimizer.step()
        without = rank.wait(state.all_reduce(gradient.clone()))
    moved = -ddp.module.weight.detach()[tiny] / (steps * sum(sizes) / len(sizes))
    return moved.mean().item(), moved.min().item(), moved.max().item(), without[tiny].count_nonzero().item()


def scale_gradients(rank, reducers, job, wire):
    """Let one rank's gradient overflow in step 2, which every rank then skips."""
    model = new_model(Perceptron)
    ddp = DistributedDataParallel(model)
    optimizer = sgd(ddp)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    overflows = False

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[5] = float("inf") if overflows else gradient.view(-1)[5]
        return gradient

    model[2].weight.register_hook(spoil)
    with rank.state(reducers, job, wire_dtype=wire) as state:
        ddp.register_comm_hook(state, reduction_hook)
        for step in range(6):
            overflows = step == 2 and rank.number == 1
            before, left_out = digest(model), state.state_dict()["residuals"]
            optimizer.zero_grad()
            scaler.scale(loss_of(ddp, rank.number, step)).backward()
            scaler.step(optimizer)
            scaler.update()
            assert (digest(model) == before) == (step == 2), f"step {step}"
            assert scaler.get_scale() == (1024.0 if step < 2 else 512.0)
            assert all(parameter.isfinite().all() for parameter in model.parameters())
            residuals = state.state_dict()["residuals"]
            assert all(one.isfinite().all() for one in residuals)
            assert step != 2 or all(map(torch.equal, residuals, left_out)), "the skipped step left a trace"
        assert len(residuals) == (0 if wire == "bf16" else 6)
    return digest(model)


def train_and_save(rank, reducers, job, wire, steps, resume, save, with_residuals=True, size=1):
    """Train from the start or from this rank's file, and save to a file."""
    first = 0
    model = new_model(Perceptron)
    optimizer = sgd(model)
    with rank.state(reducers, job, wire_dtype=wire, local_group=size) as state:
        if resume is not None:
            checkpoint = torch.load(f"{resume}-{rank.number}")
            first = checkpoint["step"]
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            if with_residuals:
                state.load_state_dict(checkpoint["state"])
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)  # rebuilds its buckets in both lives
        ddp.register_comm_hook(state, reduction_hook)
        for step in range(first, first + steps):
            optimizer.zero_grad()
            loss_of(ddp, rank.number, step).backward()
            optimizer.step()
        if save is not None:
            pieces = {"model": model, "optimizer": optimizer, "state": state}
            checkpoint = {name: piece.state_dict() for name, piece in pieces.items()}
            torch.save(checkpoint | {"step": first + steps}, f"{save}-{rank.number}")
        return [parameter.tolist() for parameter in model.parameters()]


def another_model(rank, reducers, job):
    """Use two models with one state, in turn and side by side: each parameter has its own residual."""
    with rank.state(reducers, job, wire_dtype="int8") as state:
        gone = DistributedDataParallel(Constant(300))
        gone.register_comm_hook(state, reduction_hook)
        stays = new_model(Perceptron)
        references = [Reference(rank, "int8", stays, Case())]
        models = [stays]
        ddps = [DistributedDataParallel(stays)]
        ddps[0].register_comm_hook(state, reduction_hook)
        gone(torch.randn(300)).backward()
        loss_and_check(rank, 0, models, references, ddps)
        del gone
        models.append(new_model(Branches))
        references.append(Reference(rank, "int8", models[1], Case()))
        ddps.append(DistributedDataParallel(models[1], find_unused_parameters=True))
        ddps[1].register_comm_hook(state, reduction_hook)
        for step in (1, 2):
            loss_and_check(rank, step, models, references, ddps)
        sizes = [one.numel() for one in state.state_dict()["residuals"]]
        assert sorted(sizes) == sorted(one.numel() for model in models for one in model.parameters())


def loss_and_check(rank, step, models, references, ddps):
    for model, reference, ddp in zip(models, references, ddps, strict=True):
        ddp.zero_grad()
        loss_of(ddp, rank.number, step).backward()
        reference.set_gradients(step, [True] * rank.world_size)
        assert_same(f"gradients of step {step}", model, reference.model, gradients=True)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(words)).square().mean()


def sparse_gradients(rank, reducers, job, wire):
    ddp = DistributedDataParallel(Words())
    with rank.state(reducers, job, wire_dtype=wire) as state:
        ddp.register_comm_hook(state, reduction_hook)
        raised = rank.error_of(lambda: ddp(torch.tensor([1, 2, 3 + rank.number])).backward())
        return raised, state.error


# ---- tests ----


@pytest.mark.parametrize("wire", ["int8", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_match_the_codecs(ranks, reducers, job, wire, name):
    gradients(ranks, reducers, job, wire, name)


@pytest.mark.parametrize("wire", ["fp16", "fp8", "topk", "topk:0.1"])
def test_gradients_in_the_other_formats(ranks, reducers, job, wire):
    gradients(ranks, reducers, job, wire, "rebuild, small chunks")


def gradients(ranks, reducers, job, wire, name):
    digests = ranks.run(2, train, reducers(2), job, wire, name)
    assert len(set(digests)) == 1


def test_join_with_uneven_inputs(ranks, reducers, job):
    digests = ranks.run(2, train_uneven, reducers(2), job, "int8")
    assert len(set(digests)) == 1


@pytest.mark.parametrize(
    ("wire", "sizes", "spread"),
    [
        ("int8", (1e-3, 1e-3), 0.15),
        ("topk:0.1", (5e-4, 1.5e-3), 0.15),
        (
            "int8",
            (5e-4, 1.5e-3),
            1.0,
        ),  # results are dithered: an element is right only on average over many steps
    ],
)
def test_tiny_gradients_arrive_eventually(ranks, reducers, job, wire, sizes, spread):
    """Omitted parts arrive later: after 100 steps the weights lack a few steps' worth at most."""
    for mean, least, most, without in ranks.run(2, tiny_gradients, reducers(2), job, wire, sizes, 100):
        assert without <= 0.15 * 1100, "they would arrive without error feedback as well"
        assert 0.9 < mean < 1.1
        assert 1 - spread < least <= most < 1 + spread


@pytest.mark.parametrize("wire", ["int8", "bf16", "topk"])
def test_a_gradient_scaler_sees_an_overflow_everywhere(ranks, reducers, job, wire):
    digests = ranks.run(2, scale_gradients, reducers(2), job, wire)
    assert len(set(digests)) == 1


@pytest.mark.parametrize("wire", ["int8", "topk", "bf16"])
def test_resuming_from_a_checkpoint_changes_no_bit(ranks, reducers, job, tmp_path, wire):
    """Resume in other processes, which must find the parameters of the residuals again."""
    file = str(tmp_path / "checkpoint")
    whole = ranks.run(2, train_and_save, reducers(2), f"{job}-whole", wire, 6, None, None)
    ranks.run(2, train_and_save, reducers(2), f"{job}-first", wire, 3, None, file)
    arguments = wire, 3, file, None
    resumed = ranks.run(2, train_and_save, reducers(2), f"{job}-resumed", *arguments, first=2)
    assert resumed == whole
    if wire != "bf16":
        arguments = *arguments, False
        assert ranks.run(2, train_and_save, reducers(2), f"{job}-without", *arguments, first=2) != whole


def test_a_state_with_several_models(ranks, reducers, job):
    ranks.run(2, another_model, reducers(2), job)


@pytest.mark.parametrize("wire", [None, "topk"])
def test_sparse_gradients_are_refused(ranks, reducers, job, wire):
    for raised, error in ranks.run(2, sparse_gradients, reducers(2), job, wire):
        assert type(raised) is RuntimeError
        assert type(error).__name__ == "ConfigError"
        assert str(error) in str(raised)
        for text in ("sparse=False", "'topk'", "(100, 8)"):
            assert text in str(error)

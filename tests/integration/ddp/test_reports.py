"""What ranks report to each other about each backward pass: who skipped it, and whose gradients are not finite."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from integration.ddp.test_ddp import digest
from reduction.errors import ConfigError
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import attach
from worker_plugin.riders.reports import StepReport

STEPS, LEFT_OUT = 6, 3
SLOW_S = 0.4


class Breaks(torch.autograd.Function):
    """Runs out of memory in the backward pass, after the layers above have their gradients."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        return data.clone()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError


class Model(nn.Module):
    """A model whose layers have one bucket each, and which breaks where `breaks_in` says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.breaks_in = ""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number == 2 and self.breaks_in == "forward":
                raise torch.OutOfMemoryError
            if number == 2 and self.breaks_in == "backward":
                data = Breaks.apply(data)
            data = layer(data).tanh()
        return data


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def skips(
    rank: Any,
    reducers: list[str],
    job: str,
    at: int | None,
    where: str,
    ddp: dict[str, Any],
    settings: dict[str, Any],
) -> tuple[str, list[tuple[int, StepReport | None]], float]:
    """Train; rank 1 runs out of memory at a step, or all ranks omit that step. Return the weights and the reports."""
    model = Model()
    module = DistributedDataParallel(model, bucket_cap_mb=0.0001, **ddp)
    is_weighed, is_scaled = settings.get("weigh", False), settings.get("scale", False)
    given = {name: value for name, value in settings.items() if name not in ("weigh", "scale")}
    state = attach(module, rank.state(reducers, f"{job}-{at}", **given))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=is_scaled)
    if at is not None:
        state.report_steps(module)
        assert state.last_step is None
    scaler.scale(torch.ones(()))  # before this it has no scale to report or change
    reports = []
    for step in range(STEPS):
        optimizer.zero_grad()
        if at is None and step == LEFT_OUT:
            if is_scaled:  # as a skipped step halves the scale
                scaler.update(scaler.get_scale() / 2)
            continue
        if is_scaled:
            state.set_loss_scale(scaler.get_scale())
        if is_weighed:
            state.weigh(1 + rank.number)
        model.breaks_in = where if (rank.number, step) == (1, at) else ""
        try:
            scaler.scale(module(batch(rank.number, step)).sum()).backward()
        except torch.OutOfMemoryError:
            state.skip_step()
        if at is not None:
            reports.append((step, state.last_step))
        if is_scaled:
            scaler.step(optimizer)
            scaler.update()
        elif at is None or state.last_step is None or state.last_step.counts:
            optimizer.step()
    return digest(model), reports, state.stats()["skipped_steps"]


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(
    ("count", "ddp", "settings"),
    [
        (2, {}, {"transport": "tcp"}),
        (3, {"find_unused_parameters": True}, {"transport": "grpc", "wire_dtype": "bf16"}),
        (2, {"gradient_as_bucket_view": True}, {"wire_dtype": "int8", "scale": True}),
        (4, {}, {"local_group": 2, "weigh": True}),
    ],
)
def test_a_step_that_one_rank_skips_leaves_no_trace(
    ranks: Any,
    reducers: Callable[[int], list[str]],
    job: str,
    count: int,
    ddp: dict[str, Any],
    settings: dict[str, Any],
    where: str,
) -> None:
    addresses = reducers(2)
    wanted = {
        weights for weights, _, _ in ranks.run(count, skips, addresses, job, None, where, ddp, settings)
    }
    found = ranks.run(count, skips, addresses, job, LEFT_OUT, where, ddp, settings)
    assert {weights for weights, _, _ in found} == wanted
    assert len(wanted) == 1
    for _, reports, skipped in found:
        assert reports == [
            (step, StepReport(step + 1, ("1",) if step == LEFT_OUT else (), {})) for step in range(STEPS)
        ]
        assert skipped == 1


@pytest.mark.parametrize("at", [0, 1])
def test_skipped_steps_while_ddp_orders_its_buckets(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, at: int
) -> None:
    """DDP does so after the first backward pass; training continues, and all ranks have the same weights."""
    for where in ("forward", "backward"):
        found = ranks.run(2, skips, reducers(1), f"{job}-{where}", at, where, {}, {})
        assert len({weights for weights, _, _ in found}) == 1
        assert [report.counts for _, report in found[0][1]] == [step != at for step in range(STEPS)]


def spoiled(
    rank: Any, reducers: list[str], job: str, dtype: torch.dtype
) -> tuple[list[StepReport | None], list[str], float]:
    """Put an Inf in rank 2's first layer in steps 1 and 2, and a NaN in rank 1's third layer in step 2.

    In step 3 a large gradient is finite.
    """
    model = Model().to(dtype)
    module = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    state = attach(module, rank.state(reducers, job, wire_dtype="bf16"))
    state.report_steps(module)
    spoils = {(2, 1): (0, "inf"), (2, 2): (0, "inf"), (1, 2): (2, "nan"), (0, 3): (1, "3e38")}
    step = 0

    def spoil(layer: int, gradient: torch.Tensor) -> torch.Tensor:
        where, value = spoils.get((rank.number, step), (None, ""))
        return gradient if where != layer else gradient.index_fill(0, torch.tensor([3]), float(value))

    for number, layer in enumerate(model.layers):
        assert isinstance(layer, nn.Linear)
        layer.bias.register_hook(lambda gradient, number=number: spoil(number, gradient))
    reports: list[StepReport | None] = []
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("worker_plugin.riders").addHandler(handler)
    for step in range(4):
        module.zero_grad()
        module(batch(rank.number, step).to(dtype)).sum().backward()
        reports.append(state.last_step)
    return reports, lines, state.stats()["non_finite_steps"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ranks_with_non_finite_gradients_are_named(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, dtype: torch.dtype
) -> None:
    found = ranks.run(3, spoiled, reducers(1), job, dtype)
    wanted = [{}, {"2": "layers.0.bias"}, {"1": "layers.2.bias", "2": "layers.0.bias"}, {}]
    for rank, (reports, lines, steps) in enumerate(found):
        assert reports == [StepReport(step + 1, (), names) for step, names in enumerate(wanted)]
        assert lines == ["step 2: gradients are not finite: rank 2 in layers.0.bias"] * (rank == 0)
        assert steps == 2


def late(rank: Any, reducers: list[str], job: str) -> tuple[list[StepReport | None], list[float]]:
    """Let rank 1 compute long between two layers, and rank 2 before each step."""
    model = Model()
    module = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    state = attach(module, rank.state(reducers, job))
    state.report_steps(module)
    if rank.number == 1:
        model.layers[2].register_full_backward_hook(lambda *_: time.sleep(SLOW_S))
    reports, seconds = [], []
    for step in range(6):
        if rank.number == 2:
            time.sleep(SLOW_S / 2)
        module(batch(rank.number, step)).sum().backward()
        reports.append(state.last_step)
        seconds.append(state.stats()["late_s"])
    return reports, seconds


def test_late_ranks_are_reported_per_bucket(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    found = ranks.run(3, late, reducers(1), job)
    assert [reports[0].lateness for reports, _ in found] == [{}] * 3
    late_s = [report.lateness for report in found[0][0][2:]]
    for rank, (reports, seconds) in enumerate(found):
        assert [report.lateness for report in reports[2:]] == late_s
        assert seconds[2:] == [one[str(rank)][-1] for one in late_s]
    # The minimum over all steps, because the machine may have other work.
    least = {rank: [min(one[rank][bucket] for one in late_s) for bucket in range(4)] for rank in "012"}
    assert max(least["0"]) < SLOW_S / 4, "it only waits for the others"
    assert max(least["1"][:1]) < SLOW_S / 4
    assert min(least["1"][2:]) > SLOW_S * 0.9
    assert min(least["2"]) > SLOW_S / 4


def wrong(rank: Any, reducers: list[str], job: str) -> list[str]:
    module = DistributedDataParallel(Model())
    state = attach(module, rank.state(reducers, job))
    errors = [rank.error_of(state.skip_step), rank.error_of(lambda: state.last_step)]
    errors.append(rank.error_of(lambda: state.report_steps(module.module)))
    state.report_steps(module)
    state.report_steps(module)  # a second call changes nothing
    errors += [rank.error_of(state.skip_step), rank.error_of(lambda: state.skip_step(module.module))]
    module(batch(rank.number, 0)).sum().backward()
    errors.append(rank.error_of(state.skip_step))
    assert state.last_step == StepReport(1, (), {})
    with torch.no_grad():
        module(batch(rank.number, 0))
    errors.append(rank.error_of(state.skip_step))
    assert all(isinstance(error, ConfigError) for error in errors)
    return [str(error) for error in errors]


def test_wrong_calls_are_refused(ranks: Any, reducers: Callable[[int], list[str]], job: str) -> None:
    for errors in ranks.run(2, wrong, reducers(1), job):
        for error, text in zip(
            errors,
            [
                "these are 0",
                "call state.report_steps",
                "a Model averages no gradients",
                "before a forward pass",
                "these are 0",
                "after a whole backward pass",
                "after a whole backward pass",
            ],
            strict=True,
        ):
            assert text in error


def clipped(rank: Any, reducers: list[str], job: str) -> None:
    one, other = (DistributedDataParallel(Model(), bucket_cap_mb=0.0001) for _ in range(2))
    state = attach(one, rank.state(reducers, job))
    attach(other, state)
    for module in (one, other):
        module(batch(rank.number, 0)).sum().backward()
    parameters = [*one.parameters(), *other.parameters()]
    before = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    norm = state.clip_grad_norm_(0.5)
    torch.testing.assert_close(norm, torch.linalg.vector_norm(torch.cat([one.view(-1) for one in before])))
    assert norm > 0.5
    for parameter, gradient in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.grad, gradient * (0.5 / norm))


def test_the_gradients_of_all_modules_are_clipped_as_one(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    ranks.run(2, clipped, reducers(1), job)

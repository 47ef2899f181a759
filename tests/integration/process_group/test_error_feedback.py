"""HSDP with lossy wire formats and error feedback: two nodes of two ranks, with FSDP2 within nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from reduction.errors import ConfigError
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from worker_plugin.process_group import ReductionOptions, add_error_feedback

TOP = "topk:0.1"
#: Shapes on each rank; 15 and 33 are not divisible by the number of ranks of a node.
SHAPES = (15, 33), (33, 8)


def mesh_of(reducers: list[str] | None, shape: tuple[int, ...] = (2, 2), wire: str = TOP) -> Any:
    override: Any = None
    if reducers is not None:
        override = {"replicate": ("reduction", ReductionOptions(reducers=reducers, wire_dtype=wire))}
    names = ("replicate", "shard")[: len(shape)]
    return init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override=override)


def sharded(mesh: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(*shape) for shape in SHAPES))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return model


def inputs(rank: Any, step: int) -> torch.Tensor:
    return torch.randn(8, 15, generator=torch.Generator().manual_seed(10 * step + rank.number))


def train(rank: Any, model: nn.Module, steps: range, *, lr: float = 0.1) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for step in steps:
        optimizer.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
        optimizer.step()
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]


def what_is_left_out_comes_later(
    rank: Any, reducers: list[str]
) -> tuple[list[float], list[float], list[int]]:
    """Use the same gradients in all steps; return the error of their sum with and without error feedback."""
    found: list[list[float]] = []
    for has_feedback in (True, False):
        mesh = mesh_of(reducers)
        model = sharded(mesh)
        state = add_error_feedback(model, mesh) if has_feedback else None
        off = []
        for steps in (1, 30):
            total = [torch.zeros_like(one) for one in model.parameters()]
            for _ in range(steps):
                model.zero_grad()
                (model(inputs(rank, 0)) * torch.arange(8)).mean().backward()
                total = [before + one.grad for before, one in zip(total, model.parameters(), strict=True)]
            exact = exact_gradients(rank)
            whole = [one.full_tensor() / steps for one in total]
            off.append(
                max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(whole, exact, strict=True))
            )
        found.append(off)
        if state is not None:
            sizes = [len(one) for one in state.state_dict()["residuals"]]
    return found[0], found[1], sizes


def exact_gradients(rank: Any) -> list[torch.Tensor]:
    model = sharded(mesh_of(None))
    (model(inputs(rank, 0)) * torch.arange(8)).mean().backward()
    return [one.grad.full_tensor() for one in model.parameters()]  # type: ignore[union-attr]


def test_omitted_parts_arrive_later(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    for with_it, without, sizes in ranks.run(4, what_is_left_out_comes_later, reducers(2)):
        assert without[1] > 0.2  # a tenth of the elements is inaccurate, however often it is sent
        assert with_it[1] < with_it[0] / 5
        # Sizes are in backward order. An uneven dimension is padded: 17 of 33 rows of 15 and their bias.
        assert sizes == [4 * 33 + 4, 17 * 15 + 17]


def resumed(rank: Any, reducers: list[str]) -> bool:
    mesh = mesh_of(reducers)
    model = sharded(mesh)
    state = add_error_feedback(model, mesh)
    train(rank, model, range(3))
    weights, left_out = [one.to_local().clone() for one in model.parameters()], state.state_dict()  # type: ignore[attr-defined]
    expected = train(rank, model, range(3, 6))
    norms = [state.clip_grad_norm_(1e9), nn.utils.clip_grad_norm_(model.parameters(), 1e9)]
    assert torch.equal(*(norm.full_tensor() for norm in norms))  # type: ignore[attr-defined]

    mesh = mesh_of(reducers)
    other = sharded(mesh)
    add_error_feedback(other, mesh).load_state_dict(left_out)
    with torch.no_grad():
        for parameter, saved in zip(other.parameters(), weights, strict=True):
            parameter.to_local().copy_(saved)  # type: ignore[attr-defined]
    return all(map(torch.equal, train(rank, other, range(3, 6)), expected))


def discarded(rank: Any, reducers: list[str]) -> bool:
    """Return whether a discarded step leaves no trace."""
    ends = []
    for odd in (False, True):
        mesh = mesh_of(reducers)
        model = sharded(mesh)
        state = add_error_feedback(model, mesh)
        train(rank, model, range(3))
        if odd:
            train(rank, model, range(90, 91), lr=0.0)
            state.discard_step(model)
            before = state.state_dict()["residuals"]
            train(rank, model, range(91, 92), lr=0.0)
            with pytest.raises(ConfigError, match="2 modules have had a backward pass"):
                state.discard_step()
            state.discard_step(model)
            assert all(map(torch.equal, state.state_dict()["residuals"], before))
        ends.append(train(rank, model, range(3, 6)))
    return all(map(torch.equal, *ends))


def some_without_gradients(rank: Any, reducers: list[str]) -> list[int]:
    """Leave other parameters of a module unused in each step, so that residuals cannot be assigned to parameters."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(15, 8), nn.Linear(15, 8)])
            self.step = 0

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            self.step += 1
            return (
                self.layers[self.step % 2](batch)
                if self.step <= 4
                else sum(one(batch) for one in self.layers)
            )

    mesh = mesh_of(reducers)
    model = fully_shard(Either(), mesh=mesh)
    state = add_error_feedback(model, mesh)
    sizes = []
    for steps in (range(4), range(4, 6)):
        train(rank, model, steps)
        sizes.append(sum(len(one) for one in state.state_dict()["residuals"]))
    return sizes


@pytest.mark.parametrize("what", [resumed, discarded])
def test_no_bit_changes(ranks: Any, reducers: Callable[[int], list[str]], what: Callable[..., bool]) -> None:
    assert ranks.run(4, what, reducers(2)) == [True] * 4


def test_modules_with_gradients_for_only_some_parameters(
    ranks: Any, reducers: Callable[[int], list[str]]
) -> None:
    assert ranks.run(4, some_without_gradients, reducers(2)) == [[0, 2 * (4 * 15 + 4)]] * 4


def refused(rank: Any, reducers: list[str]) -> list[str]:
    mesh, gloo = mesh_of(reducers), mesh_of(None)
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "more"))
    calls = [
        lambda: add_error_feedback(nn.Linear(3, 3), mesh),
        lambda: add_error_feedback(sharded(gloo), gloo),
        lambda: add_error_feedback(sharded(other), mesh),
        lambda: add_error_feedback(nn.Linear(3, 3), mesh_of(reducers, (4,))),
        lambda: add_error_feedback(nn.Linear(3, 3), mesh_of(reducers, (4, 1))),
    ]
    dist.barrier()
    return [str(rank.error_of(call)) for call in calls]


def test_bad_arguments_are_refused(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    for texts in ranks.run(4, refused, reducers(1)):
        for text, expected in zip(
            texts,
            ["is not sharded", "not a process group of the backend", "is sharded over", "(4,)", "(4, 1)"],
            strict=True,
        ):
            assert expected in text

"""Error feedback after discarded steps: every later step has the bits that it would have without those steps."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from integration.ddp.test_ddp import Perceptron, digest, loss_of, sgd
from reduction.errors import ConfigError
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import attach

LOSSY = ["int8", "fp8", "topk:0.1"]
#: Events in order. "overflow": GradScaler skips the step and halves its scale; "huge": the script skips the step;
#: "restart": training continues from a checkpoint with another state.
WITH_SKIPS = "overflow good good overflow huge good huge restart huge overflow restart good good".split()
#: The same without the skipped steps. "halve": halve the scale.
WITHOUT = "halve good good halve good halve good good".split()


# ---- in the ranks ----


class Training:
    """The training of one rank with GradScaler."""

    def __init__(self, rank, reducers, job, wire, scale=1.0, is_told=False, size=1) -> None:
        self.rank, self.is_told = rank, is_told
        self._make = lambda: rank.state(reducers, f"{job}-{self.lives}", wire_dtype=wire, local_group=size)
        self.lives = 0
        self.good = 0
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.scaler.scale(torch.ones(()))  # before this it has no scale to change
        self._begin()

    def _begin(self, saved: dict[str, Any] | None = None) -> None:
        self.lives += 1
        torch.manual_seed(5)
        self.model = Perceptron()
        self.optimizer = sgd(self.model)
        self.state = self._make()
        if saved is not None:
            for name in ("model", "optimizer", "scaler", "state"):
                getattr(self, name).load_state_dict(saved[name])
        self.overflows = False
        self.model[2].weight.register_hook(self._spoil)
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.001)  # it rebuilds its buckets
        attach(self.ddp, self.state)

    def _spoil(self, gradient: torch.Tensor) -> torch.Tensor:
        """Make one element of one bucket overflow on one rank."""
        if not self.overflows or self.rank.number != 1:
            return gradient
        gradient = gradient.clone()
        gradient.view(-1)[5] = float("inf")
        return gradient

    def do(self, what: str) -> None:
        getattr(self, f"_{what}")()

    def _good(self) -> None:
        self._step(self.good)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.good += 1

    def _overflow(self) -> None:
        before, scale = digest(self.model), self.scaler.get_scale()
        self.overflows = True
        self._step(50, factor=1000.0)
        self.overflows = False
        self.scaler.step(self.optimizer)
        self.scaler.update()
        assert digest(self.model) == before
        assert self.scaler.get_scale() == scale / 2

    def _huge(self) -> None:
        self._step(60, factor=1000.0)
        self.scaler.unscale_(self.optimizer)
        assert nn.utils.clip_grad_norm_(self.ddp.parameters(), 1.0).isfinite()
        self.state.discard_step()
        self.scaler.update()

    def _halve(self) -> None:
        self.scaler.update(self.scaler.get_scale() / 2)

    def _restart(self) -> None:
        pieces = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "state": self.state,
        }
        file = io.BytesIO()
        torch.save({name: piece.state_dict() for name, piece in pieces.items()}, file)
        self.state.close()
        file.seek(0)
        self._begin(torch.load(file, weights_only=True))

    def _step(self, batch: int, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        if self.is_told:
            self.state.set_loss_scale(self.scaler.get_scale())
        self.scaler.scale(loss_of(self.ddp, self.rank.number, batch) * factor).backward()


def train(rank, reducers, job, wire, plan, scale=1024.0, is_told=True, size=1):
    """Return the weights and the final residuals."""
    training = Training(rank, reducers, job, wire, scale, is_told, size)
    for what in plan:
        training.do(what)
    residuals = training.state.state_dict()["residuals"]
    assert any(one.any() for one in residuals), "nothing was left out: this shows nothing"
    return digest(training.model), sorted(one.tolist() for one in residuals)


def accumulate(rank, reducers, job, wire, has_skip):
    """Run three backward passes per step, the first two under no_sync; in a skipped step the second overflows."""
    training = Training(rank, reducers, job, wire)
    for skips in (False, True, False) if has_skip else (False, False):
        training.optimizer.zero_grad()
        for part in range(3):
            training.overflows = skips and part == 1
            with training.ddp.no_sync() if part < 2 else contextlib.nullcontext():
                loss_of(training.ddp, rank.number, 50 if skips else training.good, part).backward()
        if not skips:
            training.optimizer.step()
            training.good += 1
    return digest(training.model), training.state.state_dict()["residuals"][0].tolist()


def two_modules(rank, reducers, job, wire, has_skips):
    """Train two modules with separate steps on one state, and both in one backward pass."""
    torch.manual_seed(5)
    state = rank.state(reducers, job, wire_dtype=wire)
    one, other = (DistributedDataParallel(Perceptron(), bucket_cap_mb=0.001) for _ in range(2))
    optimizers = [sgd(ddp) for ddp in (one, other)]
    for ddp in (one, other):
        attach(ddp, state)

    def backward(step: int, *ddps: nn.Module) -> None:
        for ddp in ddps:
            ddp.zero_grad()
        sum(loss_of(ddp, rank.number, step) for ddp in ddps).backward()

    for step in range(3):
        backward(step, one)
        optimizers[0].step()
        if has_skips:
            backward(50, other)
            state.discard_step(other)
        backward(step, other)
        optimizers[1].step()
        if has_skips:
            backward(60, one, other)
            error = rank.error_of(state.discard_step)
            assert isinstance(error, ConfigError)
            assert "2 modules have had a backward pass" in str(error)
            state.discard_step(one, other.module)
    return digest(one), digest(other)


# ---- tests ----


def same_on_all(results):
    """Return the weights, which are equal on all ranks, and each rank's residuals."""
    digests = {digest for digest, _ in results}
    assert len(digests) == 1
    return digests.pop(), [left_out for _, left_out in results]


@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("is_told", [True, False])
def test_skipped_steps_leave_no_trace(ranks, reducers, job, wire, is_told):
    with_skips, without = (
        ranks.run(2, train, reducers(2), f"{job}-{name}", wire, plan, 1024.0, is_told)
        for name, plan in (("with", WITH_SKIPS), ("without", WITHOUT))
    )
    assert same_on_all(with_skips) == same_on_all(without)


@pytest.mark.parametrize("wire", LOSSY)
def test_skipped_steps_leave_no_trace_where_nodes_reduce_first(ranks, reducers, job, wire):
    """The overflow is in one shard of one node, which ranks with other shards do not sum."""
    with_skips, without = (
        ranks.run(4, train, reducers(2), f"{job}-{name}", wire, plan, 1024.0, True, 2)
        for name, plan in (("with", WITH_SKIPS), ("without", WITHOUT))
    )
    assert same_on_all(with_skips) == same_on_all(without)


@pytest.mark.parametrize("wire", ["fp8", "topk:0.1"])
def test_residuals_follow_the_loss_scale(ranks, reducers, job, wire):
    """These formats round equally at every power-of-two scale, so training has the same bits as at scale 1."""
    good = [what for what in WITHOUT if what == "good"]
    plain = ranks.run(2, train, reducers(2), f"{job}-1", wire, good, 1.0, False)
    scaled, not_told = (
        ranks.run(2, train, reducers(2), f"{job}-{is_told}", wire, WITH_SKIPS, 1024.0, is_told)
        for is_told in (True, False)
    )
    assert same_on_all(scaled) == same_on_all(plain)
    assert same_on_all(not_told)[0] != same_on_all(plain)[0]


def test_accumulated_gradients_are_one_step(ranks, reducers, job):
    with_skip, without = (
        ranks.run(2, accumulate, reducers(2), f"{job}-{has_skip}", "int8", has_skip)
        for has_skip in (True, False)
    )
    assert same_on_all(with_skip) == same_on_all(without)


def test_each_module_has_its_own_steps(ranks, reducers, job):
    with_skips, without = (
        ranks.run(2, two_modules, reducers(2), f"{job}-{has_skips}", "topk:0.1", has_skips)
        for has_skips in (True, False)
    )
    assert with_skips == without

"""Reports on each backward pass: which ranks skipped it or were late, and where the first Inf or NaN was.

Lateness needs no common clock. All ranks get the last result of a step at nearly the same moment, and from then on each
rank measures with its own clock until it submits a bucket. Waiting for others lies before that moment, so a slow rank
differs from the ranks that wait for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from reduction.errors import ConfigError
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.process import log_setup
from worker_plugin.riders.table import AllReduce, Table
from worker_plugin.tensors.futures import Future

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """All ranks' reports on one backward pass; the same on all of them."""

    #: Its number, starting at 1, among the passes of this process that DDP averaged since `report_steps`.
    step: int
    #: The ranks that called `skip_step`. If there are any, the gradients of all ranks are NaN.
    skipped: tuple[str, ...]
    #: The ranks whose own gradient was not finite, and their first such parameter in the order of the backward
    #: pass. A gradient whose norm overflows float32 counts as not finite.
    non_finite: Mapping[str, str]
    #: By how many seconds each rank submitted each bucket later than the first rank, in the order of the backward pass.
    #: Ranks in their first pass are left out. On a GPU this is when work was queued, not when it was done.
    lateness: Mapping[str, tuple[float, ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def counts(self) -> bool:
        """Whether no rank skipped it, and all ranks had finite gradients."""
        return not (self.skipped or self.non_finite)


class Reports:
    """The reports of one DDP module.

    Args:
        module: the module whose backward passes are reported.
        all_reduce: begins an in-place reduction over all ranks.
        places: returns the names of the ranks that currently take part, and this rank's index among them.
    """

    def __init__(
        self,
        module: DistributedDataParallel,
        all_reduce: AllReduce,
        places: Callable[[], tuple[list[str], int]],
    ) -> None:
        self._names = {parameter: name for name, parameter in module.module.named_parameters()}
        self._all_reduce, self._places = all_reduce, places
        #: Report of the latest pass; None before the first one.
        self.last: StepReport | None = None
        self.steps = self.skipped = self.non_finite = 0
        #: How much later than the first rank this one submitted its last bucket in the latest pass, in seconds.
        self.late_s = 0.0
        self._asked: tuple[Table, list[torch.Tensor]] | None = None
        self._is_skipping = False
        self.forget()
        # Called here rather than as a decorator, because it loads torch._dynamo, which would take more than a second in
        # each process that imports this.
        module.register_forward_pre_hook(torch.compiler.disable(self._on_forward))  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Start over with another communicator."""
        self._asked = None
        #: Whether a forward pass has begun since the last backward pass ended.
        self._has_begun = False
        #: When the last result of the latest pass arrived, on this rank's clock.
        self._ended_at: float | None = None
        self._begin()

    def _begin(self) -> None:
        #: Buckets of this backward pass so far: their futures, their parameters, and which of those are not finite.
        self._futures: list[Future] = []
        self._parameters: list[torch.Tensor] = []
        self._bad: list[torch.Tensor] = []
        #: When each bucket was submitted, in microseconds since the last pass ended; -1: unknown.
        self._handed_over: list[int] = []

    def _on_forward(self, module: DistributedDataParallel, _: object) -> None:
        if not torch.is_grad_enabled():
            return
        self.look()
        if self.last is not None and self.last.skipped and not self._has_begun:
            # An aborted backward pass leaves DDP in the middle of one. DDP's own elastic groups continue in this way.
            # DDP then reorders its buckets, which has to happen on all ranks.
            module.reducer._reset_state()
        self._has_begun = True

    # ---- one backward pass ----

    def before_bucket(self, bucket: GradBucket) -> None:
        """Inspect this rank's gradients, without waiting for a GPU."""
        ended_at = self._ended_at
        self._handed_over.append(-1 if ended_at is None else int(1e6 * (time.monotonic() - ended_at)))
        self._parameters += bucket.parameters()
        self._bad.append(_are_finite(bucket.gradients()).logical_not_())

    def after_bucket(self, bucket: GradBucket, future: Future) -> None:
        """Send this rank's report to the others after the last bucket."""
        self._futures.append(future)
        if not bucket.is_last():
            return
        device = bucket.buffer().device
        bad = torch.cat([one.to(device) for one in self._bad]).to(torch.int64)
        values = torch.tensor([int(self._is_skipping), 0, *self._handed_over], device=device)
        if not self._is_skipping:
            # argmax returns the first of several largest elements.
            values[1] = (bad.argmax() + 1) * bad.any()
        table = Table(self._places(), values, lambda tensor: self._all_reduce(tensor, dist.ReduceOp.SUM))
        self._asked = table, self._parameters
        future.add_done_callback(self._on_end)
        self._has_begun = False
        self._begin()

    def _on_end(self, _: object) -> None:
        self._ended_at = time.monotonic()

    def look(self) -> StepReport | None:
        """Return the report of the latest backward pass, which all ranks have ended or are in. Waits for it.

        Raises:
            ReductionError: the error that ended the communicator.
        """
        asked, self._asked = self._asked, None
        if asked is not None:
            table, parameters = asked
            rows = table.rows()
            self.steps += 1
            before = self.last
            self.last = StepReport(
                self.steps,
                tuple(name for name, (is_skipped, *_) in rows if is_skipped),
                {name: self._names[parameters[place - 1]] for name, (_, place, *_) in rows if place},
                _lateness({name: times for name, (_, _, *times) in rows if min(times) >= 0}),
            )
            self.late_s = self.last.lateness.get(table.own, (0.0,))[-1]
            self.skipped += bool(self.last.skipped)
            self.non_finite += bool(self.last.non_finite)
            # Loss scaling causes Infs now and then, and training that has reached NaN stays there.
            if self.last.non_finite and not (before and before.non_finite) and table.is_first:
                text = ", ".join(f"rank {rank} in {name}" for rank, name in self.last.non_finite.items())
                log.warning("step %d: gradients are not finite: %s", self.steps, text)
        return self.last

    # ---- skipping ----

    def skip(self, module: DistributedDataParallel) -> None:
        """Take part in a backward pass that this rank cannot do, with NaN for all gradients; return when it is done.

        Raises:
            ConfigError: no pass is in progress.
            RuntimeError: the error that ended the communicator.
        """
        if not self._has_begun:
            raise ConfigError(
                "skip_step() was called after a whole backward pass, or before a forward pass: call it where "
                "ddp_model(...) or backward() has failed, and outside of no_sync()"
            )
        log_setup.announce(log, f"step {self.steps + 1}: skipping it on this rank, and so on all ranks")
        sent, futures = len(self._futures), list(self._futures)
        ddp: Any = module
        self._is_skipping = True
        try:
            for bucket in ddp.reducer._get_zeros_like_grad_buckets()[sent:]:
                bucket.buffer().fill_(math.nan)
                futures.append(ddp.reducer._run_comm_hook(bucket))
            if module.find_unused_parameters:
                ddp._match_unused_params_allreduce()
            for future in futures:
                future.wait()
        finally:
            self._is_skipping = False
        for parameter in self._names:
            if parameter.requires_grad:
                parameter.grad = torch.full_like(parameter, math.nan)


def _lateness(times: Mapping[str, list[int]]) -> dict[str, tuple[float, ...]]:
    """Return by how many seconds each rank is later than the first, from microseconds per bucket."""
    first = [min(column) for column in zip(*times.values(), strict=True)]
    return {
        name: tuple((at - least) / 1e6 for at, least in zip(row, first, strict=True))
        for name, row in times.items()
    }


def _are_finite(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return for each gradient of a bucket whether all its elements are finite, without waiting for a GPU."""
    first = gradients[0]
    if first.device.type == "cpu":
        # This takes an eighth of the time of float64. A norm that is not finite proves nothing, because squares of
        # elements above 1.8e19 overflow.
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float32 if first.itemsize < 4 else None)
        if (finite := torch.stack(norms).isfinite()).all():
            return finite
    dtype = torch.complex128 if first.is_complex() else torch.float64
    return torch.stack(torch._foreach_norm(gradients, 2, dtype=dtype)).isfinite()

"""The residuals of lossy contributions, by parameter, which are added to the next contribution (error feedback).

A step is one backward pass that DDP averages, of one module, from its first bucket to its last. What it
leaves out is *pending* until the module's next step begins, and is then kept if the step counted. A step did
not count if a result has a non-finite element, which all ranks see, or if the script says so (`discard`).
Then everything is as it was before the step. So a residual takes two arrays: one that contributions read,
and one that they write.

Parameters are identified by the order in which DDP first presented them, which is the same in every run of a
script. So a residual finds its parameter again when DDP rebuilds its buckets, and after a restart from a
checkpoint. Residuals are divided by the loss scale, so they do not depend on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from reduction.errors import ConfigError
from torch.utils.weak import WeakIdKeyDictionary

from worker_plugin.tensors.encoding import ParameterSlice, Residual
from worker_plugin.tensors.futures import Future, seen_first


@dataclass(frozen=True, slots=True)
class Origin:
    """The parameters whose gradients a tensor contains."""

    module: torch.nn.Module
    #: The tensor's number in a backward pass of the module: ascending, with 0 at the start of a pass.
    index: int
    #: In their order in the tensor.
    parameters: Sequence[torch.Tensor]


class Step:
    """The part of its gradients that one backward pass of a module left out."""

    def __init__(self, loss_scale: float) -> None:
        #: Whether what it left out will be kept, as far as is known.
        self.counts = True
        #: The largest bucket index so far.
        self.last_index = -1
        #: The parameters so far; empty once the step is settled.
        self.entries: list[_Entry] = []
        self._loss_scale = loss_scale
        self._results: list[Future] = []

    def add(self, entry: _Entry) -> None:
        """Add a parameter, and settle any other step that left something out of it."""
        if entry.step is self:
            return
        if entry.step is not None:
            entry.step.settle()
        entry.step = self
        entry.residual.loss_scale = self._loss_scale
        self.entries.append(entry)

    def watch(self, future: Future, tensor: torch.Tensor) -> Future:
        """Return a future for a bucket's result that completes once it is known whether the result is finite."""
        self._results.append(seen_first(future, tensor, self._look))
        return self._results[-1]

    def _look(self, result: torch.Tensor) -> None:
        # One pass without extra memory. A finite sum has finite terms; other sums may have overflowed.
        if not (result.sum(dtype=torch.float32).isfinite() or result.isfinite().all()):
            self.counts = False

    def settle(self) -> None:
        """Keep what the step left out if it counts.

        Raises:
            ConfigError: a result is still missing, so this is unknown.
        """
        if not all(result.done() for result in self._results):
            raise ConfigError(
                "a backward pass begins before the gradients of the one before are averaged, and error feedback has "
                "to know whether these are finite: a hook that wraps reduction_hook must return a future that is "
                "done after reduction_hook's"
            )
        for entry in self.entries:
            entry.residual, entry.step = entry.settled, None
        self.entries.clear()
        self._results.clear()


class _Entry:
    """The residual of one parameter."""

    def __init__(self, kept: torch.Tensor) -> None:
        self.residual = Residual(kept, _zeros(kept.numel(), kept.device))
        #: The step that left out what is pending; None if nothing is.
        self.step: Step | None = None

    @property
    def settled(self) -> Residual:
        """The residual for the next step."""
        residual = self.residual
        if self.step is not None and self.step.counts:
            return Residual(residual.pending, residual.kept)
        return residual


class ErrorFeedback:
    """The residuals of one rank. Its encodings read and write them. Do not use this while collectives are in flight."""

    def __init__(self) -> None:
        #: Factor by which the loss of the next step is multiplied; None if it was never set.
        self._loss_scale: float | None = None
        #: The residual of each parameter, in the order in which DDP first presented them. Neither is kept alive.
        self._entries: Any = WeakIdKeyDictionary()
        #: The latest step of each module.
        self._steps: WeakKeyDictionary[torch.nn.Module, Step] = WeakKeyDictionary()
        #: Loaded residuals of parameters that DDP has not presented yet.
        self._loaded: deque[torch.Tensor] = deque()
        self._is_used = False
        #: Whether there are residuals with an unknown loss scale.
        self._has_unknown = False

    def set_loss_scale(self, scale: float) -> None:
        """Set the factor by which the loss of the next steps is multiplied.

        Raises:
            ConfigError: there are already residuals, and their scale is unknown.
        """
        if self._loss_scale is None and self._has_unknown:
            raise ConfigError(
                "set_loss_scale comes too late: what gradients have left out so far, or in the state_dict that was "
                "loaded, has a scale that is not known; call it before each backward pass, from the first one on"
            )
        self._loss_scale = scale

    def step_of(self, module: torch.nn.Module, index: int) -> Step:
        """Return the step of a module's bucket, which may begin with it: DDP presents buckets in ascending order.

        Raises:
            ConfigError: the module's previous step is still in flight.
        """
        step = self._steps.get(module)
        if step is None or index <= step.last_index:
            if step is not None:
                step.settle()
            step = self._steps[module] = Step(self._loss_scale or 1.0)
        step.last_index = index
        return step

    def slices(self, step: Step, parameters: Sequence[torch.Tensor]) -> list[ParameterSlice]:
        """Return the positions of these parameters of a step in their bucket, with their residuals.

        Raises:
            ConfigError: a loaded residual has another size than its parameter, or another module's step with the same
                parameter is still in flight.
        """
        self._is_used = True
        self._has_unknown = self._loss_scale is None
        slices, offset = [], 0
        for parameter in parameters:
            numel = parameter.numel()
            entry = self._entry(parameter)
            step.add(entry)
            slices.append(ParameterSlice(offset, numel, entry.residual))
            offset += numel
        return slices

    def discard(self, modules: Sequence[torch.nn.Module]) -> None:
        """Discard the latest step of each of these modules, or of the only module that has one.

        Raises:
            ConfigError: no module is given, and several have a step.
        """
        if not modules:
            modules = [module for module, step in self._steps.items() if step.entries]
            if len(modules) > 1:
                raise ConfigError(
                    f"{len(modules)} modules have had a backward pass, and which of them skips its step is not known: "
                    f"pass it, as in state.discard_step(ddp_model)"
                )
        for module in modules:
            if (step := self._steps.get(module)) is not None:
                step.counts = False

    def _entry(self, parameter: torch.Tensor) -> _Entry:
        entry: _Entry | None = self._entries.get(parameter)
        if entry is None:
            numel, device = parameter.numel(), parameter.device
            kept = self._loaded[0] if self._loaded else _zeros(numel, device)
            if kept.numel() != numel:
                raise ConfigError(
                    f"the residual of parameter {len(self._entries)} has {kept.numel()} elements, the parameter "
                    f"{numel}: load the state_dict of the same rank and model, or none"
                )
            if self._loaded:
                self._loaded.popleft()
            entry = self._entries[parameter] = _Entry(kept.to(device))
        return entry

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all residuals as the next step will use them, in the order of their parameters."""
        residuals = [*(entry.settled.kept for entry in self._entries.values()), *self._loaded]
        return {
            "residuals": [residual.to("cpu", copy=True) for residual in residuals],
            "has_loss_scale": not self._has_unknown,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load residuals. Call this before the first collective.

        Raises:
            ConfigError: it is too late, or these are not residuals.
        """
        residuals = state.get("residuals")
        if not isinstance(residuals, list) or not all(isinstance(one, torch.Tensor) for one in residuals):
            raise ConfigError("this is not a state_dict() of a ReductionState")
        if self._is_used:
            raise ConfigError("load_state_dict comes too late: call it before the first backward pass")
        self._loaded = deque(
            one.detach().to("cpu", torch.float32, copy=True).reshape(-1) for one in residuals
        )
        self._has_unknown = bool(residuals) and not state.get("has_loss_scale", False)


def _zeros(numel: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":  # unwritten, unlike torch's: in hierarchical mode a rank uses only its shard
        return torch.from_numpy(np.zeros(numel, np.float32))
    return torch.zeros(numel, dtype=torch.float32, device=device)

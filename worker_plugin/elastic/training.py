"""What all workers of an elastic job have alike, and how a newcomer gets it and keeps up with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from reduction.layout import fingerprint

from worker_plugin.elastic import transfer


@dataclass(frozen=True, slots=True)
class Training:
    """What `state.sync` was called with. For the thread that trains.

    All trees are what `transfer.pack` takes. They share the memory of the training.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    extra: Mapping[str, Any]

    def state(self) -> dict[str, Any]:
        """Return model and optimizer."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {"model": dict(self.model.state_dict()), "optimizer": optimizer}

    def take(self, state: Mapping[str, Any]) -> None:
        """Take another worker's `state`, in place."""
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])

    def step(self) -> dict[str, Any] | None:
        """Return what the optimizer's next step depends on besides `state`; None if no tensors can say that."""
        gradients = [parameter.grad for parameter in self._optimized()]
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
            return None
        return {"groups": self._settings(), "gradients": gradients}

    def repeat(self, step: Mapping[str, Any]) -> None:
        """Do another worker's `step`."""
        assert self.optimizer is not None  # that of the other one has done the step
        self._set(step["groups"])
        for parameter, gradient in zip(self._optimized(), step["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        self.optimizer.step()
        for parameter in self._optimized():
            parameter.grad = None

    def rest(self) -> dict[str, Any]:
        """Return what steps of the optimizer leave alone, and a digest of what they change."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        others = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        return {"model": others, "groups": self._settings(), "digest": self._digest()}

    def take_rest(self, rest: Mapping[str, Any]) -> bool:
        """Take another worker's `rest`; return whether this one has now what that one has."""
        self.model.load_state_dict(rest["model"], strict=False)
        self._set(rest["groups"])
        return bool(self._digest() == rest["digest"])

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [] if self.optimizer is None else self.optimizer.param_groups

    def _optimized(self) -> list[torch.Tensor]:
        return [parameter for group in self._groups for parameter in group["params"]]

    def _settings(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in group.items() if name != "params"} for group in self._groups]

    def _set(self, settings: list[dict[str, Any]]) -> None:
        for group, values in zip(self._groups, settings, strict=True):
            group.update(values)

    def _digest(self) -> str:
        return transfer.digest(self.state())


def describe(model: torch.nn.Module) -> str:
    """Return a short text that only models with the same tensors have."""
    tensors = [(name, str(tensor.dtype), *tensor.shape) for name, tensor in model.state_dict().items()]
    digest = fingerprint([byte for byte in json.dumps(tensors).encode()])
    return f"{len(tensors)} tensors ({digest:016x})"

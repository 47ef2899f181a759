"""What all workers of an elastic job have alike, and how a newcomer gets it and keeps up with it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from reduction.errors import ConfigError
from reduction.layout import fingerprint
from torch.utils.hooks import RemovableHandle

from worker_plugin.elastic.newcomers import transfer

#: Where torch.optim.Optimizer keeps the hooks of its steps. Something that
#: only looks like an optimizer has none.
_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"


@dataclass(frozen=True, slots=True)
class Training:
    """What `state.sync` was called with. For the thread that trains.

    All trees are what `transfer.pack` takes. They share the memory of the training.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    extra: Mapping[str, Any]

    def is_same_as(self, other: Training | None) -> bool:
        """Whether another one has the same objects."""
        return other is not None and self.model is other.model and self.optimizer is other.optimizer

    def check(self) -> None:
        """Check that all that the optimizer changes is in the model.

        Raises:
            ConfigError: it is not.
        """
        inside = set(self.model.parameters())
        outside = [tuple(one.shape) for one in self._optimized() if one not in inside]
        if outside:
            raise ConfigError(
                f"the optimizer has {len(outside)} parameters that are not in the model, one of shape {outside[0]}: "
                f"workers that come would not get them; give state.sync a module that has all of them, such as "
                f"torch.nn.ModuleList([model, loss])"
            )

    def state(self) -> dict[str, Any]:
        """Return model and optimizer."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {"model": dict(self.model.state_dict()), "optimizer": optimizer}

    def take(self, state: Mapping[str, Any]) -> None:
        """Take another worker's `state`, in place."""
        self.model.load_state_dict(state["model"])
        if self.optimizer is None:
            return
        self.optimizer.load_state_dict(state["optimizer"])
        # That has cast most of what it has loaded to the dtypes of the parameters.
        for index, parameter in enumerate(self._optimized()):
            loaded = self.optimizer.state.get(parameter, {})
            for name, value in state["optimizer"]["state"].get(index, {}).items():
                if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                    loaded[name] = value.to(loaded[name].device)

    def before_steps(self, call: Callable[..., None]) -> RemovableHandle | None:
        """Have this called before each step of the optimizer, after what else is; None if it calls nothing."""
        if self.optimizer is None or not hasattr(self.optimizer, _HOOKS[0]):
            return None
        return self.optimizer.register_step_pre_hook(call)

    def step(self) -> dict[str, Any] | None:
        """Return what the optimizer's next step depends on besides `state`; None if no tensors can say that."""
        gradients = [parameter.grad for parameter in self._optimized()]
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
            return None
        return {"groups": self._settings(), "gradients": gradients}

    def repeat(self, step: Mapping[str, Any]) -> None:
        """Do another worker's `step`, without the hooks of the optimizer, which have had their effect there."""
        assert self.optimizer is not None  # that of the other one has done the step
        self._set(step["groups"])
        for parameter, gradient in zip(self._optimized(), step["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        hooks = {name: getattr(self.optimizer, name) for name in _HOOKS}
        for name in _HOOKS:
            setattr(self.optimizer, name, OrderedDict())
        try:
            self.optimizer.step()
        finally:
            for name, those in hooks.items():
                setattr(self.optimizer, name, those)
        for parameter in self._optimized():
            parameter.grad = None

    def rest(self) -> dict[str, Any]:
        """Return what steps of the optimizer leave alone."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        others = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        return {"model": others, "groups": self._settings()}

    def take_rest(self, rest: Mapping[str, Any]) -> None:
        """Take another worker's `rest`."""
        self.model.load_state_dict(rest["model"], strict=False)
        self._set(rest["groups"])

    def digest(self) -> str:
        """Return a text that only trainings with the same bits have."""
        return transfer.digest(self.state())

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


def describe(model: torch.nn.Module) -> str:
    """Return a short text that only models with the same tensors have."""
    tensors = [(name, str(tensor.dtype), *tensor.shape) for name, tensor in model.state_dict().items()]
    digest = fingerprint([byte for byte in json.dumps(tensors).encode()])
    return f"{len(tensors)} tensors ({digest:016x})"

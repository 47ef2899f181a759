"""The state that all workers of an elastic job share, and how a newcomer gets it and keeps up with it."""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from reduction.errors import ConfigError, ReductionError
from reduction.layout import fingerprint
from torch.utils.hooks import RemovableHandle

from worker_plugin.elastic import trees

#: Attributes in which torch.optim.Optimizer keeps its step hooks. An object that only looks like an optimizer has none.
_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"


@contextlib.contextmanager
def _taking() -> Iterator[None]:
    """Turn an error of the user's model or optimizer into one of this worker alone."""
    try:
        yield
    except ReductionError:
        raise
    except Exception as error:
        raise ConfigError(
            f"this worker cannot take the training state of another one: {error!r}; use the same model and optimizer "
            f"on all workers"
        ) from error


@dataclass(frozen=True, slots=True)
class Training:
    """The arguments of `state.sync`. For the training thread.

    All trees are of the form that `trees.pack` accepts. They share the memory of the training.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    extra: Mapping[str, Any]

    def is_same_as(self, other: Training | None) -> bool:
        """Return whether another training has the same objects."""
        return other is not None and self.model is other.model and self.optimizer is other.optimizer

    def check(self) -> None:
        """Check that everything the optimizer changes is in the model, and that all of it can be sent.

        Raises:
            ConfigError: some of it is not in the model, or cannot be sent.
        """
        inside = set(self.model.parameters())
        outside = [tuple(one.shape) for one in self._optimized() if one not in inside]
        if outside:
            raise ConfigError(
                f"the optimizer has {len(outside)} parameters that are not in the model, one of shape {outside[0]}: "
                f"joining workers would not get them; pass state.sync a module that has all of them, such as "
                f"torch.nn.ModuleList([model, loss])"
            )
        trees.pack(self.state())

    def check_extra(self) -> None:
        """Check that `extra` can be sent. Every worker does so in every `sync`, as a newcomer may need it in any.

        Raises:
            ConfigError: it cannot.
        """
        trees.pack({"extra": dict(self.extra)})

    def state(self) -> dict[str, Any]:
        """Return the state of model and optimizer."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        state = {"model": dict(self.model.state_dict()), "optimizer": optimizer, "buffers": self.buffers()}
        return state | {"form": self._form()}

    @_taking()
    def take(self, state: Mapping[str, Any]) -> None:
        """Take another worker's `state`, in place.

        Raises:
            ConfigError: this worker's optimizer is of another kind, or something cannot load the state.
        """
        self._check_form(state["form"])
        self.take_buffers(state["buffers"])
        self.model.load_state_dict(state["model"])
        if self.optimizer is None:
            return
        self.optimizer.load_state_dict(state["optimizer"])
        # `load_state_dict` has cast most of what it loaded to the dtypes of the parameters.
        for index, parameter in enumerate(self._optimized()):
            loaded = self.optimizer.state.get(parameter, {})
            for name, value in state["optimizer"]["state"].get(index, {}).items():
                if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                    loaded[name] = value.to(loaded[name].device)

    def before_steps(self, call: Callable[..., None]) -> RemovableHandle | None:
        """Have this called before each step of the optimizer, after other hooks. Return None if it calls no hooks."""
        if self.optimizer is None or not hasattr(self.optimizer, _HOOKS[0]):
            return None
        return self.optimizer.register_step_pre_hook(call)

    def step(self) -> dict[str, Any] | None:
        """Return what the optimizer's next step needs beyond `state`; None if dense tensors cannot express it."""
        gradients = [parameter.grad for parameter in self._optimized()]
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
            return None
        return {"groups": self._settings(), "gradients": gradients}

    @_taking()
    def repeat(self, step: Mapping[str, Any]) -> None:
        """Repeat another worker's `step`, without the optimizer's hooks, which have already had their effect there.

        Raises:
            ConfigError: this worker's optimizer cannot do it.
        """
        assert self.optimizer is not None  # the other worker's optimizer has done the step
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
        """Return the state that steps of the optimizer do not change."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        others = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        return {"model": others, "groups": self._settings(), "buffers": self.buffers()}

    @_taking()
    def take_rest(self, rest: Mapping[str, Any]) -> None:
        """Take another worker's `rest`.

        Raises:
            ConfigError: something cannot load it.
        """
        self.take_buffers(rest["buffers"])
        self.model.load_state_dict(rest["model"], strict=False)
        self._set(rest["groups"])

    def buffers(self) -> dict[str, list[Any]]:
        """Return the model's buffers by name, each preceded by whether it is in `state_dict`."""
        return {
            name: [_is_persistent(*self._owner(name)), buffer.detach()]
            for name, buffer in self.model.named_buffers()
        }

    @_taking()
    def take_buffers(self, theirs: Mapping[str, Sequence[Any]]) -> None:
        """Take another worker's `buffers`, with their shapes; one that this model lacks is registered.

        Buffers that only this model has are left alone.

        Raises:
            ConfigError: a buffer has another dtype, is in `state_dict` on one side only, or cannot be registered.
        """
        for name, (is_persistent, value) in theirs.items():
            owner, leaf = self._owner(name)
            own = dict(owner.named_buffers(recurse=False)).get(leaf)
            if own is None:
                device = next(self.model.parameters(), value).device
                owner.register_buffer(leaf, value.to(device), is_persistent)
                continue
            kinds = (own.dtype, _is_persistent(owner, leaf)), (value.dtype, is_persistent)
            if kinds[0] != kinds[1]:
                here, there = (f"{dtype} with persistent={is_kept}" for dtype, is_kept in kinds)
                raise ConfigError(
                    f"buffer {name} is {here} in this worker's model and {there} in that of the first worker: "
                    f"register it in the same way on all workers"
                )
            if own.shape == value.shape:
                with torch.no_grad():
                    own.copy_(value)
            else:  # for example a cache that has grown; references to the buffer stay valid
                own.data = value.to(own.device)

    def digest(self) -> str:
        """Return a string that only trainings with the same bits have."""
        return trees.digest(self.state())

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

    # ---- what must be alike ----

    def _form(self) -> dict[str, Any]:
        """Return the class of the optimizer, and the names of the parameters and of the settings in its groups."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return {
            "class": "none" if self.optimizer is None else type(self.optimizer).__name__,
            "parameters": [[names[one] for one in group["params"]] for group in self._groups],
            "settings": [sorted(settings) for settings in self._settings()],
        }

    def _check_form(self, theirs: Mapping[str, Any]) -> None:
        """Check that another worker's optimizer is like this one.

        It may have more settings in a group, such as those that a scheduler added. It adopts them.
        """
        ours = self._form()
        if ours["class"] != theirs["class"]:
            self._differ("is", ours["class"], theirs["class"])
        sizes = [[len(group) for group in form["parameters"]] for form in (ours, theirs)]
        if sizes[0] != sizes[1]:
            self._differ("has groups of", *(f"{size} parameters" for size in sizes))
        for index, groups in enumerate(zip(ours["parameters"], theirs["parameters"], strict=True)):
            for names in zip(*groups, strict=True):
                if names[0] != names[1]:
                    self._differ(f"has in group {index}, at one place,", *names)
        for index, (own, others) in enumerate(zip(ours["settings"], theirs["settings"], strict=True)):
            if missing := set(own).difference(others):
                self._differ(f"has in group {index} the settings", sorted(missing), "has none of these")

    @staticmethod
    def _differ(what: str, ours: object, theirs: object) -> NoReturn:
        raise ConfigError(
            f"the optimizer of this worker {what} {ours}, and that of the first worker {theirs}: create it in the same "
            f"way on all workers"
        )

    def _owner(self, name: str) -> tuple[torch.nn.Module, str]:
        """Return the module that owns a buffer, and the buffer's name there."""
        path, _, leaf = name.rpartition(".")
        return self.model.get_submodule(path), leaf


def _is_persistent(owner: torch.nn.Module, leaf: str) -> bool:
    return leaf not in owner._non_persistent_buffers_set


def describe(model: torch.nn.Module) -> str:
    """Return a short text that only models with the same tensors have."""
    tensors = [(name, str(tensor.dtype), *tensor.shape) for name, tensor in model.state_dict().items()]
    digest = fingerprint([byte for byte in json.dumps(tensors).encode()])
    return f"{len(tensors)} tensors ({digest:016x})"

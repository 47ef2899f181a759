"""Lets tests written for GPUs run on the CPU, and tests written for Gloo on another backend."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from support.asking_for import ask_for
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

#: Decorators, with and without arguments, that skip a test if there are too few GPUs.
_DECORATORS = (
    "nccl_skip_if_lt_x_gpu",
    "require_n_gpus_for_nccl_backend",
    "requires_gloo",
    "skip_if_lt_x_gpu",
)
_GPUS = 8


def _on_cpu(device: Any) -> Any:
    if isinstance(device, bool):
        return device
    if isinstance(device, int):
        return torch.device("cpu")
    if isinstance(device, (str, torch.device)) and str(device).startswith("cuda"):
        return torch.device("cpu")
    return device


class OnCpu(TorchFunctionMode):
    """Redirects tensors' devices to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch."""
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = _on_cpu(kwargs["device"])
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], _on_cpu(args[1]), *args[2:])
        return func(*args, **kwargs)


def before_import() -> None:
    """Prepare torch, before the module with the tests is imported."""
    for name in _DECORATORS:
        setattr(common_distributed, name, lambda *_, **__: lambda function: function)
    common_distributed.skip_if_no_gpu = lambda function: function
    common_distributed.init_multigpu_helper = _one_device_each
    _move_modules()
    cuda: Any = torch.cuda
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: _GPUS
    cuda.device = lambda *_, **__: contextlib.nullcontext()


def after_import(tests: Any, backend: str) -> None:
    """Prepare the module with the tests; groups that request "gloo" get `backend`."""
    tests.init_multigpu_helper = _one_device_each
    if backend != "gloo":
        ask_for(backend)


def _one_device_each(world_size: int, _: str) -> dict[int, list[int]]:
    return {rank: [rank] for rank in range(int(world_size))}


def _move_modules() -> None:
    module_to, make_ddp = torch.nn.Module.to, DistributedDataParallel.__init__

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        return module_to(
            self, *map(_on_cpu, args), **{name: _on_cpu(value) for name, value in kwargs.items()}
        )

    def make(
        self: DistributedDataParallel,
        module: torch.nn.Module,
        device_ids: object = None,
        output_device: object = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        make_ddp(self, module, None, None, *args, **kwargs)

    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[method-assign, assignment]
    torch.nn.Module.to = to  # type: ignore[method-assign, assignment]
    DistributedDataParallel.__init__ = make  # type: ignore[method-assign, assignment]

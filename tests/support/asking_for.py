"""Give code written for Gloo process groups groups of another backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def ask_for(backend: str) -> None:
    """Make `init_process_group` and `new_group` create groups of `backend` where "gloo" is requested."""
    dist.init_process_group = _asking_for(backend, dist.init_process_group)
    dist.new_group = _asking_for(backend, dist.new_group)


def _asking_for(backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") == "gloo":
            kwargs["backend"] = backend
        elif args and args[0] == "gloo":
            args = (backend, *args[1:])
        return function(*args, **kwargs)

    return call

"""Lightning and Fabric: GPU tests run on the CPU, and tests that want a separate process have one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import lightning.fabric
import lightning.fabric.utilities.testing
import lightning.pytorch
import lightning.pytorch.utilities.testing

_NOT_NEEDED = ("bf16_cuda", "min_cuda_gpus", "standalone")


def _without_gpus(original: Callable[..., Any]) -> Callable[..., Any]:
    def reasons(**wanted: Any) -> Any:
        return original(**{name: value for name, value in wanted.items() if name not in _NOT_NEEDED})

    return reasons


def _move(maker: type) -> None:
    original = maker.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def make(self: Any, *arguments: Any, **named: Any) -> None:
        if named.get("accelerator") in ("cuda", "gpu"):
            named["accelerator"] = "cpu"
            if isinstance(named.get("devices"), list):
                named["devices"] = len(named["devices"])
        original(self, *arguments, **named)

    maker.__init__ = make  # type: ignore[misc]


# These say why a test is skipped.
for module in (lightning.fabric.utilities.testing, lightning.pytorch.utilities.testing):
    module._runif_reasons = _without_gpus(module._runif_reasons)
_move(lightning.pytorch.Trainer)
_move(lightning.fabric.Fabric)

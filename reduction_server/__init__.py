"""Reduction Server for PyTorch.

    import reduction_server as rs

    state = rs.attach(ddp_model, reducers=["10.0.0.5:50051", "10.0.0.6:50051"])

This is the public face. What it offers is made in the packages behind it, which change as they need to: `worker_plugin`
(the training side), `reducer` (the process and its command) and `reduction` (what both share). Nothing is imported
before it is used, so errors and the version can be had where torch is not installed.

    lightning, ray, torchft, horovod    bridges to frameworks
    process_group                       the backend "reduction" of torch.distributed
    elastic                             for jobs whose workers come and go
    doctor                              a command: torchrun ... -m reduction_server.doctor
    debug_server                        pages for torch's debug server
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reduction import __version__, errors

    from worker_plugin import ReductionState, attach, reduction_hook

__all__ = ["ReductionState", "__version__", "attach", "errors", "reduction_hook"]

_HOMES = {
    "ReductionState": "worker_plugin",
    "attach": "worker_plugin",
    "reduction_hook": "worker_plugin",
    "errors": "reduction",
    "__version__": "reduction",
}


def __getattr__(name: str) -> Any:
    """Import what is used for the first time."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

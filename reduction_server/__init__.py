"""Reduction Server for PyTorch.

    import reduction_server as rs

    state = rs.attach(ddp_model, reducers=["10.0.0.5:50051", "10.0.0.6:50051"])

This is the public interface. The implementation is in packages that may change at any time: `worker_plugin` (the
training side), `reducer` (the process and its command) and `reduction` (shared by both). Names that need torch are
imported on first use, so errors and the version are available without torch.

    lightning, ray, torchft, horovod    bridges to frameworks
    process_group                       the backend "reduction" of torch.distributed
    elastic                             for jobs whose workers come and go
    doctor                              a command: torchrun ... -m reduction_server.doctor
    debug_server                        pages for torch's debug server
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reduction import __version__, errors

if TYPE_CHECKING:
    from worker_plugin import ReductionState, attach, digest, reduction_hook, watch

__all__ = ["ReductionState", "__version__", "attach", "digest", "errors", "reduction_hook", "watch"]


def __getattr__(name: str) -> Any:
    """Import a name that needs torch on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module("worker_plugin"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

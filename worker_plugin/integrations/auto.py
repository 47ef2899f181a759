"""REDUCTION_AUTO=ddp: every DistributedDataParallel module averages through the reducers; no line of code.

Torch calls `install` at the end of `import torch` (`_reduction_server_entry_points`). It changes
`DistributedDataParallel.__init__`, which then does what `attach` does, and `register_comm_hook`, which
says why a script cannot have another hook.
"""

from __future__ import annotations

import functools
import logging
import os
import weakref
from typing import Any

import torch.distributed as dist
from _reduction_server_entry_points import NAME, VARIABLE
from reduction.errors import ConfigError
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger(__name__)

KNOWN = ("ddp",)
#: How many modules of each group have been attached, by the group's ranks.
_counts: dict[tuple[int, ...], int] = {}
_attached: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def install(wanted: str) -> None:
    """Have DDP modules attach themselves as they are made; or refuse to be made, if the wish is unknown."""
    original, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
    if getattr(original, "_is_reduction_auto", False):
        return

    @functools.wraps(original)
    def init(self: DistributedDataParallel, *arguments: Any, **named: Any) -> None:
        if wanted not in KNOWN:
            raise ConfigError(f"{VARIABLE} is {wanted!r}; this version knows {', '.join(map(repr, KNOWN))}")
        original(self, *arguments, **named)
        # A subclass has other ways to average: torchft's registers a hook of its own.
        if type(self) is DistributedDataParallel and dist.get_backend(self.process_group) != NAME:
            _attach(self)

    @functools.wraps(register)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
        if has_attached(self):
            raise ConfigError(
                f"{VARIABLE}={wanted} has given this module a communication hook, so {hook!r} cannot be its hook as "
                f"well: unset {VARIABLE}, or leave out the script's own hook"
            )
        register(self, state, hook)

    init._is_reduction_auto = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]


def has_attached(module: DistributedDataParallel) -> bool:
    """Whether this module has attached itself."""
    return module in _attached


def _attach(module: DistributedDataParallel) -> None:
    from worker_plugin.hook import attach
    from worker_plugin.process import log_setup
    from worker_plugin.state import ReductionState

    ranks = tuple(dist.get_process_group_ranks(module.process_group))
    number = _counts[ranks] = _counts.get(ranks, 0) + 1
    job = os.environ.get("REDUCTION_JOB") or None
    # The modules of a script are made in the same order on all ranks; each is a job of its own,
    # because buckets do not say whose they are.
    named = f"{job}-{number}" if job is not None and number > 1 else job
    attach(module, ReductionState(process_group=module.process_group, job=named))
    _attached.add(module)
    if module.process_group.rank() == 0:
        text = f"{VARIABLE}=ddp: DistributedDataParallel module {number} averages over {len(ranks)} ranks by reducers"
        log_setup.announce(log, text)

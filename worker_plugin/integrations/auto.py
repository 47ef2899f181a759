"""REDUCTION_AUTO: makes a script use reducers without any change to it.

    ddp     every DistributedDataParallel module averages through the reducers, as after `attach`
    group   `init_process_group` with Gloo, NCCL or no backend creates the "reduction" backend: all all-reduces go
            through the reducers, whoever issues them. Groups that `new_group` creates with another backend
            keep it, and their rank 0 reports that

torch calls `install` at the end of `import torch` (`_reduction_server_entry_points`). It changes torch's
`init_process_group`, and with "ddp" also `DistributedDataParallel.__init__` and `register_comm_hook`. A process
that ends without having met a reducer reports the reason.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from _reduction_server_entry_points import NAME, VARIABLE
from reduction.errors import ConfigError
from reduction.text import counted
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.process import log_setup
from worker_plugin.process.at_exit import ClosedAtExit

log = logging.getLogger(__name__)

KNOWN = ("ddp", "group")
#: Names of backends that "reduction" replaces: it contains both.
_REPLACED = re.compile(r"((cpu:|cuda:)?(gloo|nccl),?)*")
_GROUP = f"{VARIABLE}=group (`reducer run --auto group`)"
#: Alternatives for scripts that have another kind of communication hook.
WAYS_OUT = (
    f"set {_GROUP}, with which the hook's all-reduces go through the reducers; "
    f"set REDUCTION_WIRE_DTYPE to bf16 or fp16 instead of using a hook that compresses; unset {VARIABLE} (`reducer run "
    f"--no-auto`) to do without reducers"
)
#: The installed value of REDUCTION_AUTO, if any.
_installed: list[str] = []
#: Number of attached modules of each group, by the group's ranks.
_counts: dict[tuple[int, ...], int] = {}
#: Backends of groups that were left unchanged.
_kept: list[str] = []


def install(wanted: str) -> None:
    """Change torch once, as REDUCTION_AUTO requests. With an unknown value, modules and groups cannot be made."""
    if _installed:
        return
    _installed.append(wanted)
    _watch_groups(wanted)
    if wanted == "ddp":
        _attach_modules()
    elif wanted == "group":
        _watch_new_groups()


def _watch_groups(wanted: str) -> None:
    """Reject process groups if the value is unknown, substitute the backend if requested, and note rank 0's group."""
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *arguments: Any, **named: Any) -> None:
        if wanted not in KNOWN:
            raise ConfigError(f"{VARIABLE} is {wanted!r}; this version knows {', '.join(map(repr, KNOWN))}")
        is_replaced = wanted == "group" and _REPLACED.fullmatch((backend or "").lower()) is not None
        if is_replaced:
            backend = NAME
            if (options := named.pop("pg_options", None)) is not None:
                log.warning("%s=group: pg_options=%r are not used", VARIABLE, options)
        original(backend, *arguments, **named)
        if dist.get_rank() == 0:
            _ends.add(_at_end)
        if is_replaced and dist.get_rank() == 0:
            ranks = counted(dist.get_world_size(), "rank")
            text = f"{VARIABLE}=group: all-reduces of {ranks} will go through the reducers"
            log_setup.announce(log, text)
        elif wanted == "group" and backend != NAME:
            log.warning(
                "%s=group: a process group of backend %r does not use the reducers", VARIABLE, backend
            )

    _put_in_place(original, init_process_group)


def _watch_new_groups() -> None:
    """Warn that groups created by a script with another backend keep it, once per backend."""
    original = dist.new_group

    @functools.wraps(original)
    def new_group(
        ranks: list[int] | None = None,
        timeout: Any = None,
        backend: str | None = None,
        *others: Any,
        **named: Any,
    ) -> Any:
        group = original(ranks, timeout, backend, *others, **named)
        if backend not in (None, NAME, *_kept) and dist.get_rank(group) == 0:
            _kept.append(str(backend))
            members = ",".join(map(str, dist.get_process_group_ranks(group)))
            log.warning(
                "%s=group: new_group(backend=%r) of ranks %s keeps its backend, so its all-reduces do not go through "
                "the reducers: leave `backend` out if they should",
                VARIABLE,
                backend,
                members,
            )
        return group

    _put_in_place(original, new_group)


def _put_in_place(original: Callable[..., Any], other: Callable[..., Any]) -> None:
    name = original.__name__
    for module in list(sys.modules.values()):  # torch.distributed's own modules have it by this name as well
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, other)


class _AtEnd:
    """Reports at the end of rank 0's process why nothing went through the reducers, if that is the case."""

    def __init__(self) -> None:
        self._has_said = False

    def begin_close(self) -> None:
        """Report it once, unless an error has ended the script, which is reason enough."""
        from worker_plugin.client import has_started

        if not (has_started() or self._has_said or hasattr(sys, "last_value")):
            self._has_said = True
            log.warning(
                "%s=%s: nothing went through the reducers: %s", VARIABLE, _installed[0], self._reason()
            )

    def close(self) -> None:
        """Do nothing."""

    def _reason(self) -> str:
        modules = sum(_counts.values())
        if _kept:
            return f"rank 0 has reduced only in groups of {', '.join(_kept)} that `new_group` has created"
        if _installed[0] == "group":
            return "rank 0 has reduced nothing; FSDP2 over all ranks has no all-reduce, HSDP has one"
        if modules:
            return (
                f"no gradients of DistributedDataParallel modules ({modules}) were averaged by them; no_sync() leaves "
                f"gradients as they are, and averages of parameters need {_GROUP}"
            )
        return f"rank 0 has created no DistributedDataParallel module; HSDP and hand-written all-reduces need {_GROUP}"


_at_end = _AtEnd()
_ends: ClosedAtExit[_AtEnd] = ClosedAtExit()


# ---- ddp ----


def _attach_modules() -> None:
    base = DistributedDataParallel
    register, prepare_subclass = base.register_comm_hook, base.__init_subclass__

    def attaching(cls: type[DistributedDataParallel]) -> Callable[..., None]:
        """Return a constructor that attaches modules of exactly this class, once all other constructors have run."""
        original = cls.__init__

        @functools.wraps(original)
        def init(self: DistributedDataParallel, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            if type(self) is cls and dist.get_backend(self.process_group) != NAME:
                _attach(self)

        return init

    def init_subclass(cls: type[DistributedDataParallel], /, **named: Any) -> None:
        prepare_subclass(**named)
        cls.__init__ = attaching(cls)  # type: ignore[method-assign]

    @functools.wraps(register)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
        from worker_plugin.hook import attached_state

        if attached_state(self) is not None:
            name = getattr(hook, "__qualname__", repr(hook))
            raise ConfigError(
                f"{VARIABLE}=ddp has given this module a communication hook, so {name} cannot be its hook as well: "
                f"leave that line out, or {WAYS_OUT}"
            )
        register(self, state, hook)

    base.__init__ = attaching(base)  # type: ignore[method-assign]
    base.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]
    base.register_comm_hook = register_comm_hook  # type: ignore[method-assign]


def _attach(module: DistributedDataParallel) -> None:
    from worker_plugin.hook import attach
    from worker_plugin.state import ReductionState

    ranks = tuple(dist.get_process_group_ranks(module.process_group))
    number = _counts[ranks] = _counts.get(ranks, 0) + 1
    what = f"{VARIABLE}=ddp: {type(module).__name__} module {number}"
    if module._comm_hooks:  # its class has registered one, as torchft's does
        if module.process_group.rank() == 0:
            text = "%s does not use the reducers, because its class has a communication hook: %s"
            log.warning(text, what, WAYS_OUT)
        return
    job = os.environ.get("REDUCTION_JOB") or None
    # A script creates its modules in the same order on all ranks. Each is a job of its own, because buckets do not name
    # their module.
    named = f"{job}-{number}" if job is not None and number > 1 else job
    attach(module, ReductionState(process_group=module.process_group, job=named))
    if module.process_group.rank() == 0:
        log_setup.announce(log, f"{what} will average over {counted(len(ranks), 'rank')} through reducers")

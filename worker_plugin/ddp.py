"""The modules whose gradients a state averages. DDP modules must average over the state's ranks."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from reduction.errors import ConfigError
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.discovery.rank_group import RankGroup, group_of

#: How long DDP may take to answer, in seconds, before it is assumed to be in a backward pass.
ANSWER_S = 0.005


class Modules:
    """The checked modules, identified by their parameters, because a bucket does not name its module."""

    def __init__(self) -> None:
        #: By id of a parameter: the parameter, which shows whether the id is still valid, and its module.
        self._checked: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.nn.Module]]] = {}
        self._modules: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._asking: threading.Thread | None = None
        self._exposed_s: float | None = None

    def owner(self, parameter: torch.Tensor) -> torch.nn.Module | None:
        """Return the module that has the parameter, or the last one checked if several have it.

        Return None if no checked module has it, or the module is gone.
        """
        found = self._checked.get(id(parameter))
        return None if found is None or found[0]() is not parameter else found[1]()

    def check(self, module: DistributedDataParallel, group: RankGroup) -> RankGroup:
        """Check a DDP module. Return the state's group, completed from the module's if its ranks were unknown.

        Raises:
            ConfigError: the module averages over other ranks.
        """
        theirs = group_of(module.process_group)
        if group.global_ranks is None and (group.rank, group.size) == (theirs.rank, theirs.size):
            group = replace(group, global_ranks=theirs.global_ranks, label=theirs.label)
        if group.global_ranks != theirs.global_ranks:
            raise ConfigError(
                f"the DistributedDataParallel module averages over {theirs}, but this state is for {group}: make the "
                f"state with attach(ddp_model) or ReductionState(process_group=...), on all ranks of the module"
            )
        self.add(module)
        return group

    def add(self, module: torch.nn.Module) -> None:
        """Add a module whose ranks need no check."""
        owner = weakref.ref(module)
        self._checked |= {id(parameter): (weakref.ref(parameter), owner) for parameter in module.parameters()}
        if isinstance(module, DistributedDataParallel):
            self._modules.add(module)

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of all modules, in the order in which they were checked."""
        found = (ref() for ref, _ in self._checked.values())
        return [parameter for parameter in found if parameter is not None]

    def exposed_s(self) -> float | None:
        """Return how long the latest step that DDP measured waited for collectives, over all modules, in seconds.

        DDP measures the first ten steps and then every 100th, unless `_set_ddp_runtime_logging_sample_rate` says
        otherwise. Return None if it has measured none, or if this version of torch does not report it. For any thread.

        DDP answers under a lock that it holds during a backward pass, even while that waits for us. So it is asked on a
        separate thread. If it does not answer soon, return its previous answer.
        """
        if not self._modules:
            return None
        asking = self._asking
        if asking is None or not asking.is_alive():
            asking = self._asking = threading.Thread(target=self._ask, name="reduction-ddp")
            asking.start()
        asking.join(ANSWER_S)
        return self._exposed_s

    def _ask(self) -> None:
        found = [exposed_s(module) for module in list(self._modules)]
        known = [seconds for seconds in found if seconds is not None]
        self._exposed_s = sum(known) if known else None


def exposed_s(module: DistributedDataParallel) -> float | None:
    """Return how long a module's latest measured step waited for collectives that did not overlap, in seconds.

    Blocks while the module is in a backward pass.
    """
    try:
        ask: Callable[[], Mapping[str, object]] = module._get_ddp_logging_data
        data = ask()
        whole, hidden = data["backward_comm_time"], data["backward_compute_comm_overlap_time"]
    except Exception:  # the function is private: another torch may lack it or raise
        return None
    if not isinstance(whole, int) or not isinstance(hidden, int) or whole <= 0:
        return None
    return max(0, whole - hidden) / 1e9


def modules_of(parameter: torch.Tensor, state: object) -> Sequence[DistributedDataParallel]:
    """Return the DDP modules that a parameter's gradient may belong to. Looks at all objects of the process.

    DDP tells its hook nothing about itself. If several modules have the parameter, return those that were given this
    state.

    Raises:
        ConfigError: there is none, so the ranks to average over are unknown.
    """
    everything = gc.get_objects()
    modules = [thing for thing in everything if issubclass(type(thing), DistributedDataParallel)]
    modules = [module for module in modules if any(own is parameter for own in module.parameters())]
    if not modules:
        raise ConfigError(
            "the DistributedDataParallel module of this bucket cannot be found (gc.freeze() hides it), so over which "
            "ranks it averages is not known: register the hook with attach(ddp_model)"
        )
    with_this_state = [
        module for module in modules if any(hook_state is state for _, hook_state in module._comm_hooks)
    ]
    return with_this_state or modules

"""The modules whose gradients a state averages: those of DDP must average over the state's ranks."""

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

#: How long DDP may take to answer, in seconds, before it is taken to be in a backward pass.
ANSWER_S = 0.005


class Modules:
    """The modules that were checked, known by their parameters: a bucket does not say which module it belongs to."""

    def __init__(self) -> None:
        #: By id of a parameter: the parameter, which tells whether the id still stands for it, and its module.
        self._checked: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.nn.Module]]] = {}
        self._modules: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._asking: threading.Thread | None = None
        self._exposed_s: float | None = None

    def owner(self, parameter: torch.Tensor) -> torch.nn.Module | None:
        """Return the module that has the parameter, the one that was checked last if several have it.

        None if no module that was checked has it, or the module is gone.
        """
        found = self._checked.get(id(parameter))
        return None if found is None or found[0]() is not parameter else found[1]()

    def check(self, module: DistributedDataParallel, group: RankGroup) -> RankGroup:
        """Check a module of DDP, and return the state's group, completed from the module's if its ranks were not known.

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
        """Add a module that needs no check of its ranks."""
        owner = weakref.ref(module)
        self._checked |= {id(parameter): (weakref.ref(parameter), owner) for parameter in module.parameters()}
        if isinstance(module, DistributedDataParallel):
            self._modules.add(module)

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of all modules, in the order in which they were checked."""
        found = (ref() for ref, _ in self._checked.values())
        return [parameter for parameter in found if parameter is not None]

    def exposed_s(self) -> float | None:
        """Return how long the latest step that DDP has measured waited for collectives, of all modules in seconds.

        DDP measures the first ten steps and then every 100th, unless `_set_ddp_runtime_logging_sample_rate` says
        otherwise. None if it has measured none, or if this version of torch does not tell. Any thread.

        DDP answers under a lock which it holds during a backward pass, also while that waits for us. So it
        is asked on a thread of its own; if it does not answer soon, this is its answer before.
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

    It blocks while the module is in a backward pass.
    """
    try:
        ask: Callable[[], Mapping[str, object]] = module._get_ddp_logging_data
        data = ask()
        whole, hidden = data["backward_comm_time"], data["backward_compute_comm_overlap_time"]
    except Exception:  # the function is private: another torch may have none, or one that raises
        return None
    if not isinstance(whole, int) or not isinstance(hidden, int) or whole <= 0:
        return None
    return max(0, whole - hidden) / 1e9


def modules_of(parameter: torch.Tensor, state: object) -> Sequence[DistributedDataParallel]:
    """Return the DDP modules that the gradient of a parameter may be of; looks at all objects of the process.

    DDP tells its hook nothing about itself. If several modules have the parameter, those that were
    given this state are meant.

    Raises:
        ConfigError: there is none, so that nobody knows over which ranks to average.
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

"""The DDP modules whose gradients a state averages: all of them must average over the state's own ranks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace

import torch
from reduction.errors import ConfigError
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.rank_group import RankGroup, group_of


class Modules:
    """Those that were checked. A bucket does not say which module it is of; its parameters do."""

    def __init__(self) -> None:
        #: By id; the reference tells whether it is still that parameter.
        self._checked: dict[int, weakref.ref[torch.Tensor]] = {}

    def knows(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter is one of a module that was checked."""
        reference = self._checked.get(id(parameter))
        return reference is not None and reference() is parameter

    def check(self, module: DistributedDataParallel, group: RankGroup) -> RankGroup:
        """Take note of a module; return the state's group, with what the module's adds to it.

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
        self._checked |= {id(parameter): weakref.ref(parameter) for parameter in module.parameters()}
        return group


def modules_of(parameter: torch.Tensor, state: object) -> Sequence[DistributedDataParallel]:
    """Return the DDP modules that the gradient of a parameter may be of; looks at all objects of the process.

    DDP tells its hook nothing about itself. If several modules have the parameter, those that were
    given this state are meant.

    Raises:
        ConfigError: there is none, so that nobody knows over which ranks to average.
    """
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]
    found = [module for module in found if any(one is parameter for one in module.parameters())]
    ours = [module for module in found if any(one is state for _, one in module._comm_hooks)]
    if not found:
        raise ConfigError(
            "the DistributedDataParallel module of this bucket cannot be found (gc.freeze() hides it), so over which "
            "ranks it averages is not known: register the hook with attach(ddp_model)"
        )
    return ours or found

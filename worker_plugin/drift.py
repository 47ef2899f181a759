"""Whether the ranks still have the same weights: digests of all of them meet in one sum, every so many steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from reduction.errors import ConfigError, ReplicasDiffer
from torch.distributed.distributed_c10d import ProcessGroup

from worker_plugin.tensors.digest import digests


class Waitable(Protocol):
    """A collective that is under way."""

    def wait(self) -> object:
        """Return when its tensor has the result."""


class Watch:
    """Compares what all ranks have, every so many steps.

    Each rank puts digests of its tensors into a row of its own of a tensor of int64 that is zero elsewhere, and the sum
    of those has all rows on every rank. It is looked at in the step after, when it is there already. So all ranks raise
    the same error in the same step.

    Args:
        model: its parameters are compared, frozen ones too, but not its buffers, which DDP lets differ within a step.
        every: after so many steps.
        optimizer: its tensors are compared as well; None: none.
        all_reduce: begins a sum over all ranks, in place.
        places: returns what the ranks of this moment are called, and which of them this one is.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        every: int,
        optimizer: torch.optim.Optimizer | None,
        all_reduce: Callable[[torch.Tensor], Waitable],
        places: Callable[[], tuple[list[str], int]],
    ) -> None:
        if not isinstance(model, torch.nn.Module) or not any(True for _ in model.parameters()):
            raise ConfigError(f"a {type(model).__name__} has no parameters that could differ: pass the model")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(
                f"every is {every!r}: pass how many steps lie between two comparisons, at least 1"
            )
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"the optimizer is a {type(optimizer).__name__}: pass one of torch.optim")
        self._model, self._every, self._optimizer = model, every, optimizer
        self._all_reduce, self._places = all_reduce, places
        #: Steps of this process; and since when those are counted of which each `every`-th compares.
        self._steps = self._counted_from = 0
        self._alike_at: int | None = None
        self._asked: _Asked | None = None

    @property
    def first(self) -> torch.Tensor:
        """A parameter, by which DDP modules are told apart: one that DDP knows, if there is one."""
        parameters = list(self._model.parameters())
        return next((one for one in parameters if one.requires_grad), parameters[0])

    def count_again(self) -> None:
        """Begin to count steps again, as all ranks do in the same step."""
        self._counted_from, self._alike_at = self._steps, None

    def forget(self) -> None:
        """Begin again with another communicator."""
        self.count_again()
        self._asked = None

    def step(self) -> None:
        """Do what is to do in a step; all ranks call it in each, when their tensors are to be alike.

        Raises:
            ReplicasDiffer: they were not, at the last comparison; on all ranks.
            ReductionError: what has ended the communicator.
        """
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.check(self._alike_at)
            self._alike_at = asked.step
        self._steps += 1
        if (self._steps - self._counted_from) % self._every == 0:
            names, tensors = zip(*_tensors(self._model, self._optimizer), strict=True)
            places, own = self._places()
            table = torch.zeros(len(places), 1 + len(names), dtype=torch.int64)
            table[own, 0], table[own, 1:] = 1, digests(tensors)
            self._asked = _Asked(self._steps, table, self._all_reduce(table), names, places)


class _Asked:
    """A comparison that is under way."""

    def __init__(
        self, step: int, table: torch.Tensor, sum_of_all: Waitable, names: tuple[str, ...], places: list[str]
    ) -> None:
        self.step = step
        self._table, self._sum, self._names, self._places = table, sum_of_all, names, places

    def check(self, alike_at: int | None) -> None:
        """Raise ReplicasDiffer if not all ranks have said the same."""
        self._sum.wait()
        there = self._table[self._table[:, 0] != 0, 1:]
        if bool((there == there[0]).all()):
            return
        rows: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for place, (is_there, *row) in zip(self._places, self._table.tolist(), strict=True):
            if is_there:  # a worker of an elastic job may have been lost meanwhile
                rows[tuple(row)].append(place)
        most = max(rows, key=lambda row: len(rows[row]))  # the first of those that are as large
        others = [place for row, places in rows.items() if row != most for place in places]
        different = [name for name, *values in zip(self._names, *rows, strict=True) if len(set(values)) > 1]
        rest = f" and {len(different) - 1} more of {len(self._names)} tensors" if len(different) > 1 else ""
        before = "" if alike_at is None else f"; {self.step - alike_at} steps before they were alike"
        raise ReplicasDiffer(
            f"ranks {', '.join(others)} do not have the weights of ranks {', '.join(rows[most])}: {different[0]}{rest} "
            f"differ in step {self.step} of this process{before}. Go on from a checkpoint of a time before that"
        )


def _tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over what is compared, with names; of a tensor that is in pieces this rank's piece."""
    names: dict[torch.Tensor, str] = {}
    for name, parameter in model.named_parameters():
        names[parameter] = name.removeprefix("module.")
        yield names[parameter], _own(parameter)
    if optimizer is None:
        return
    for parameter in (one for group in optimizer.param_groups for one in group["params"]):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor):
                yield f"{key} of {names.get(parameter, '?')}", _own(value)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def watch(
    model: torch.nn.Module,
    every: int = 100,
    *,
    group: ProcessGroup | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Watch:
    """Return what compares a model over a process group, of any backend: call its `step` once per step on every rank.

    For what no `ReductionState` averages; with one there is `state.watch`.

    Args:
        model: as for `Watch`. Of one that is sharded each rank compares its own pieces.
        every: after so many steps.
        group: ranks that are to have the same; None: all. Of a model that is sharded and replicated, those that
            have the same pieces.
        optimizer: as for `Watch`.

    Raises:
        ConfigError: an argument is wrong.
    """

    def all_reduce(table: torch.Tensor) -> Waitable:
        work: dist.Work | None = dist.all_reduce(table, group=group, async_op=True)
        assert work is not None  # this rank is in the group
        return work

    def places() -> tuple[list[str], int]:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        return [str(rank) for rank in ranks], ranks.index(dist.get_rank())

    return Watch(model, every, optimizer, all_reduce, places)

"""Check that all ranks still have the same weights: every N steps, one sum collects their digests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from reduction.errors import ConfigError, ReplicasDiffer
from torch.distributed.distributed_c10d import ProcessGroup

from worker_plugin.riders.table import Table, Waitable
from worker_plugin.tensors.digest import digests


class Watch:
    """Compares the weights of all ranks every N steps.

    The digests of each rank's tensors form its row of a `Table`. Each rank looks at the table in the next step, when it
    has arrived. So all ranks raise the same error in the same step.

    Args:
        model: its parameters are compared, including frozen ones, but not its buffers, which DDP lets differ within a
            step.
        every: N.
        optimizer: its tensors are compared as well; None: none.
        all_reduce: begins an in-place sum over all ranks.
        places: returns the names of the ranks that currently take part, and this rank's index among them.
    """

    #: The table's device.
    device = torch.device("cpu")

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
        trained = (one for one in model.parameters() if one.requires_grad)
        #: A parameter that identifies the DDP module: one with a gradient, if there is one.
        self.first = next(trained, next(model.parameters()))
        self._all_reduce, self._places = all_reduce, places
        #: Steps of this process so far, and the number of them at the call of `count_again`.
        self._steps = self._counted_from = 0
        self._alike_at: int | None = None
        self._asked: _Asked | None = None

    def count_again(self) -> None:
        """Count steps from here on. All ranks do so in the same step."""
        self._counted_from, self._alike_at = self._steps, None

    def forget(self) -> None:
        """Start over with another communicator."""
        self.count_again()
        self._asked = None

    def step(self) -> None:
        """Compare if it is due. All ranks call this once per step, at a point where their weights should be equal.

        Raises:
            ReplicasDiffer: they differed at the last comparison; raised on all ranks.
            ReductionError: the error that ended the communicator.
        """
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.check(self._alike_at)
            self._alike_at = asked.step
        self._steps += 1
        if (self._steps - self._counted_from) % self._every == 0:
            names, tensors = zip(*_tensors(self._model, self._optimizer), strict=True)
            table = Table(self._places(), digests(tensors).to(self.device), self._all_reduce)
            self._asked = _Asked(self._steps, table, names)


class _Asked:
    """A comparison in progress."""

    def __init__(self, step: int, table: Table, names: tuple[str, ...]) -> None:
        self.step = step
        self._table, self._names = table, names

    def check(self, alike_at: int | None) -> None:
        """Raise ReplicasDiffer if not all ranks reported the same digests."""
        rows: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for place, row in self._table.rows():
            rows[tuple(row)].append(place)
        if len(rows) == 1:
            return
        most = max(rows, key=lambda row: len(rows[row]))  # the first one on a tie
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
    """Iterate over the compared tensors, with names. Of a DTensor it yields this rank's shard."""
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
    """Return a `Watch` over a process group of any backend. Call its `step` once per step on every rank.

    Use it for models whose gradients no `ReductionState` averages; where one does, use `state.watch`.

    Args:
        model: as for `Watch`. Each rank compares its own shards of a sharded model.
        every: N.
        group: ranks that should have the same weights; None: all. For a model that is sharded and replicated (HSDP),
            the ranks that hold the same shards.
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

    found = Watch(model, every, optimizer, all_reduce, places)
    found.device = found.first.device  # NCCL cannot sum tensors on the CPU
    return found

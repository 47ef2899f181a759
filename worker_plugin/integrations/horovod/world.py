"""Ranks and process sets, which `hvd.init` creates from torch.distributed."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from reduction.errors import ConfigError
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from worker_plugin.discovery.rank_group import group_of
from worker_plugin.integrations.horovod.handles import Average, Operation
from worker_plugin.integrations.horovod.negotiation import Negotiation
from worker_plugin.state import ReductionState
from worker_plugin.tensors.futures import Future, seen_first
from worker_plugin.tensors.supported import is_admitted

#: Other launchers' names for torchrun's variables.
_VARIABLES = {
    "RANK": ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "LOCAL_WORLD_SIZE": ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}


class ProcessSet:
    """Some ranks, which can have their own collectives.

    Args:
        ranks: by their numbers among all ranks.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self.ranks: list[int] | None = None if ranks is None else sorted(ranks)
        self.process_set_id: int | None = None
        self._negotiation: Negotiation | None = None
        #: Adds everything except optimizers' gradients; each optimizer has its own state.
        self._reduction_state: ReductionState | None = None
        self._optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()

    def included(self) -> bool:
        """Whether this rank is one of them."""
        return dist.get_rank() in self._known()

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self._known())

    def rank(self) -> int:
        """Return this rank's number among them.

        Raises:
            ValueError: it is not one of them.
        """
        return self._known().index(dist.get_rank())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash(tuple(self.ranks or ()))

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    @property
    def negotiation(self) -> Negotiation:
        """The object through which collectives are issued.

        Raises:
            ValueError: the set is not registered, or this rank is not in it.
        """
        if self._negotiation is None:
            if not is_initialized():
                raise ValueError("Horovod has not been initialized; use hvd.init().")
            raise ValueError(f"{self} is not registered, or does not include rank {rank()}")
        return self._negotiation

    def new_state(self, name: str) -> ReductionState:
        """Return a state of these ranks, whose collectives are not ordered with any other state's."""
        store = group_of(self.negotiation.group).store
        assert store is not None
        job = os.environ.get("REDUCTION_JOB")
        settings: dict[str, Any] = {"job": f"{job}-{self.process_set_id}-{name}"} if job else {}
        store = PrefixStore(name, store)
        return ReductionState(store=store, rank=self.rank(), world_size=self.size(), **settings)

    def add_optimizer(self, optimizer: Any) -> int:
        """Have `optimizer.stand_in` called for its steps after this rank has joined; return its number."""
        number = next(self._numbers)
        self._optimizers[number] = optimizer
        return number

    def reduce(self, tensor: torch.Tensor, op: Operation, prescale: float, postscale: float) -> Future:
        """Reduce a contiguous tensor in place. Called on the negotiation's thread.

        Uses the reducers, or Gloo or NCCL for what they cannot do.
        """
        _scale(tensor, prescale)
        torch_op, must_divide = op.value, False
        if op is Average and not is_admitted(tensor, torch_op):
            torch_op, must_divide = dist.ReduceOp.SUM, True
        if is_admitted(tensor, torch_op):
            if self._reduction_state is None:
                self._reduction_state = self.new_state("operations")
            future = self._reduction_state.all_reduce(tensor, torch_op)
        else:
            work = dist.all_reduce(tensor, torch_op, self.negotiation.group, async_op=True)
            assert work is not None
            future = work.get_future()

        def finish(_: object) -> None:
            if must_divide:
                mode = None if tensor.is_floating_point() else "trunc"
                tensor.copy_(torch.div(tensor, self.size(), rounding_mode=mode))
            _scale(tensor, postscale)

        return seen_first(future, tensor, finish)

    def _stand_in(self, same: dict[str, Any]) -> None:
        """Take part in a collective of the others after this rank has joined, with zeros in an all-reduce."""
        if same["kind"] == "allreduce":
            zeros = torch.zeros(same["shape"], dtype=getattr(torch, same["dtype"]), device=same["device"])
            self.reduce(zeros, Operation[same["op"].upper()], 1.0, 1.0)
        elif optimizer := self._optimizers.get(same.get("number", -1)):
            optimizer.stand_in()

    def _known(self) -> list[int]:
        if self.ranks is None:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self.ranks

    def _register(self) -> None:
        """Create the set's resources. All ranks call this, in the same order."""
        group = dist.new_group(self._known(), backend=_backend())
        self.process_set_id = next(_world.numbers)
        _world.sets[self.process_set_id] = self
        if self.included():
            self._negotiation = Negotiation(group, self._stand_in)

    def _end(self) -> None:
        if self._negotiation is not None:
            self._negotiation.close()
            for one in (self, *self._optimizers.values()):
                if one._reduction_state is not None:
                    one._reduction_state.close()
            dist.destroy_process_group(self._negotiation.group)
        self.process_set_id = self._negotiation = self._reduction_state = None


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply a tensor in place. Integers are scaled in float64, with the fraction truncated."""
    if factor != 1.0:
        tensor.copy_(tensor * factor if tensor.is_floating_point() else tensor.double() * factor)


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


class _World:
    """The state that `init` creates and `shutdown` ends."""

    def __init__(self) -> None:
        #: The store of torch's launcher, which is kept because it cannot be created twice.
        self.root: Store | None = None
        self.owns_group = False
        self.lives = itertools.count()
        self.sets: dict[int, ProcessSet] = {}
        self.numbers = itertools.count()


_world = _World()
#: All ranks.
global_process_set = ProcessSet()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meet the other ranks. Idempotent.

    Ranks are those of torch.distributed, or of the launcher: torchrun, or any other that sets RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT. Rank and size are also taken from the variables of horovodrun and mpirun.

    Args:
        comm: not supported, and must be None.
        process_sets: further sets of ranks, the same on all ranks; "dynamic" is always allowed.

    Raises:
        ConfigError: `comm` was given.
    """
    if comm is not None:
        raise ConfigError(f"hvd.init(comm={comm!r}): there is no MPI here; give process_sets instead")
    if is_initialized():
        return
    if not dist.is_initialized():
        for name, others in _VARIABLES.items():
            for found in filter(None, map(os.environ.get, others)):
                os.environ.setdefault(name, found)
        if _world.root is None:
            _world.root = next(iter(rendezvous("env://")))[0]
        dist.init_process_group(
            _backend(),
            store=PrefixStore(f"horovod-{next(_world.lives)}", _world.root),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        _world.owns_group = True
    _world.numbers = itertools.count()
    global_process_set.ranks = list(range(dist.get_world_size()))
    global_process_set._register()
    for process_set in process_sets if not isinstance(process_sets, str) and process_sets else ():
        process_set._register()


def shutdown() -> None:
    """Leave. Does nothing before `init`."""
    if not is_initialized():
        return
    for process_set in _world.sets.values():
        process_set._end()
    _world.sets.clear()
    global_process_set.ranks = None
    if _world.owns_group:
        dist.destroy_process_group()
        _world.owns_group = False


def is_initialized() -> bool:
    """Return whether `init` was called, and `shutdown` was not."""
    return global_process_set.ranks is not None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks. All ranks call this, in the same order.

    Raises:
        ValueError: the same ranks are already registered, or are not valid ranks.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set._known()
    if not ranks or not set(ranks) <= set(range(size())) or len(set(ranks)) < len(ranks):
        raise ValueError(
            f"a process set of ranks {ranks}: they must be distinct numbers from 0 to {size() - 1}"
        )
    if process_set in _world.sets.values():
        raise ValueError(f"a process set with ranks {ranks} is already registered")
    process_set._register()
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set, on all ranks; return whether it was registered."""
    number = process_set.process_set_id
    if number is None or process_set is global_process_set:
        return False
    # Once all ranks are here, it is no longer needed.
    global_process_set.negotiation.issue("barrier", None).wait()
    process_set._end()
    return _world.sets.pop(number, None) is not None


rank, size = global_process_set.rank, global_process_set.size


def local_rank() -> int:
    """Return this rank's number on its host, or its rank if the launcher does not report it."""
    global_process_set._known()
    return int(os.environ.get("LOCAL_RANK", rank()))


def local_size() -> int:
    """Return the number of ranks on this host, or of all ranks if the launcher does not report it."""
    global_process_set._known()
    return int(os.environ.get("LOCAL_WORLD_SIZE", size()))


def cross_rank() -> int:
    """Return the number of this host, if all hosts have the same number of ranks."""
    return rank() // local_size()


def cross_size() -> int:
    """Return the number of hosts, if all hosts have the same number of ranks."""
    return -(-size() // local_size())


def gloo_built(verbose: bool = False) -> bool:
    """Return whether Gloo does what reducers cannot: always."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """Return the version of NCCL, such as 22907, which does what reducers cannot on GPUs; 0 without GPUs."""
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return int(major) * 10_000 + int(minor) * 100 + int(patch)


def cuda_built(verbose: bool = False) -> bool:
    """Return whether there are GPUs."""
    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """Return whether MPI, IBM's DDL, oneCCL or ROCm is used: never."""
    return False


gloo_enabled = gloo_built
mpi_enabled = mpi_threads_supported = ddl_built = ccl_built = rocm_built = mpi_built

"""Ranks and process sets: what `hvd.init` makes, out of torch.distributed."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from reduction.errors import ConfigError
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store
from torch.distributed.rendezvous import rendezvous

from worker_plugin.discovery.rank_group import group_of
from worker_plugin.integrations.horovod.negotiation import Negotiation
from worker_plugin.state import ReductionState

#: What launchers call this rank and the number of ranks, on all hosts and on this one.
_VARIABLES = {
    "RANK": ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("WORLD_SIZE", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "LOCAL_WORLD_SIZE": ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}


class ProcessSet:
    """Some ranks, which can have collectives of their own.

    Args:
        ranks: by their numbers among all ranks.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self.ranks: list[int] | None = None if ranks is None else sorted(ranks)
        self.process_set_id: int | None = None
        self._group: ProcessGroup | None = None
        self._store: Store | None = None
        self._negotiation: Negotiation | None = None
        self._state: ReductionState | None = None
        #: All that were made, until the end. An optimizer that is gone has left its own already.
        self._states: weakref.WeakSet[ReductionState] = weakref.WeakSet()
        self._optimizers = itertools.count()

    def included(self) -> bool:
        """Whether this rank is one of them."""
        return dist.get_rank() in self._known()

    def size(self) -> int:
        """Return how many they are."""
        return len(self._known())

    def rank(self) -> int:
        """Return this rank's number among them.

        Raises:
            ValueError: it is none of them.
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
        """Where collectives are issued.

        Raises:
            ValueError: the set is not registered, or this rank is not in it.
        """
        if self._negotiation is None:
            if not is_initialized():
                raise ValueError("Horovod has not been initialized; use hvd.init().")
            raise ValueError(f"{self} is not registered, or has not rank {rank()}")
        return self._negotiation

    @property
    def state(self) -> ReductionState:
        """What all-reduces over these ranks."""
        if self._state is None:
            self._state = self.new_state("operations")
        return self._state

    @property
    def group(self) -> ProcessGroup:
        """The group that does what reducers do not; for the thread of the negotiation only."""
        assert self._group is not None
        return self._group

    def new_state(self, name: str | None = None) -> ReductionState:
        """Return a state of these ranks, whose collectives are in no order with any other's.

        All ranks make their states without a name in the same order.
        """
        name = f"optimizer-{next(self._optimizers)}" if name is None else name
        assert self._store is not None
        job = os.environ.get("REDUCTION_JOB")
        settings: dict[str, Any] = {"job": f"{job}-{self.process_set_id}-{name}"} if job else {}
        store = PrefixStore(name, self._store)
        state = ReductionState(store=store, rank=self.rank(), world_size=self.size(), **settings)
        self._states.add(state)
        return state

    def _known(self) -> list[int]:
        if self.ranks is None:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self.ranks

    def _register(self, number: int, store: Store) -> None:
        """Make what the set needs. All ranks call it, in the same order."""
        from worker_plugin.integrations.horovod.all_reduce import stand_in

        ranks = self._known()
        group = dist.new_group(ranks, backend="cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        self.process_set_id = number
        if not self.included():
            return
        self._group = group
        self._store = PrefixStore(f"process-set-{number}", store)
        self._negotiation = Negotiation(group, lambda name, same: stand_in(self, name, same))

    def _end(self) -> None:
        if self._negotiation is not None:
            self._negotiation.close()
        for state in list(self._states):
            state.close()
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self.process_set_id = self._group = self._negotiation = self._state = self._store = None


class _World:
    """What `init` has made, and `shutdown` ends."""

    def __init__(self) -> None:
        #: The store of torch's launcher, which stays: it cannot be made twice.
        self.root: Store | None = None
        #: The store between `init` and `shutdown`.
        self.store: Store | None = None
        self.owns_group = False
        self.lives = itertools.count()
        self.sets: dict[int, ProcessSet] = {}
        self.numbers = itertools.count()


_world = _World()
#: All ranks.
global_process_set = ProcessSet()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meet the other ranks. Idempotent.

    Ranks are those of torch.distributed, or of the launcher: torchrun, or any that sets RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT. Of horovodrun's and mpirun's variables rank and size are understood.

    Args:
        comm: not supported, and must be None.
        process_sets: more sets of ranks, the same on all ranks; "dynamic" is always allowed.

    Raises:
        ConfigError: `comm` was given.
    """
    if comm is not None:
        raise ConfigError(f"hvd.init(comm={comm!r}): there is no MPI here; give process_sets instead")
    if is_initialized():
        return
    if dist.is_initialized():
        store = group_of(dist.group.WORLD).store  # type: ignore[arg-type]
        assert store is not None
    else:
        for name, variables in _VARIABLES.items():
            found = next((os.environ[one] for one in variables if os.environ.get(one)), None)
            if found is not None:
                os.environ.setdefault(name, found)
        if _world.root is None:
            _world.root = next(iter(rendezvous("env://")))[0]
        store = PrefixStore(f"horovod-{next(_world.lives)}", _world.root)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("default", store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        _world.owns_group = True
    _world.store = PrefixStore("horovod", store)
    _world.numbers = itertools.count()
    global_process_set.ranks = list(range(dist.get_world_size()))
    _add(global_process_set)
    for process_set in process_sets if not isinstance(process_sets, str) and process_sets else ():
        _add(process_set)


def shutdown() -> None:
    """Leave. Nothing happens before `init`."""
    if not is_initialized():
        return
    for process_set in _world.sets.values():
        process_set._end()
    _world.sets.clear()
    _world.store = None
    global_process_set.ranks = None
    if _world.owns_group:
        dist.destroy_process_group()
        _world.owns_group = False


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` was not."""
    return _world.store is not None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks; all ranks do it, in the same order.

    Raises:
        ValueError: the same ranks are registered already, or are no ranks.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set._known()
    if not ranks or not set(ranks) <= set(range(size())) or len(set(ranks)) < len(ranks):
        raise ValueError(f"a process set of ranks {ranks}: they must be different ones of 0 to {size() - 1}")
    if process_set in _world.sets.values():
        raise ValueError(f"a process set with ranks {ranks} is registered already")
    _add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set, on all ranks; return whether it was registered."""
    number = process_set.process_set_id
    if number is None or process_set is global_process_set:
        return False
    global_process_set.negotiation.barrier()  # all ranks are here, so nobody needs it any more
    process_set._end()
    return _world.sets.pop(number, None) is not None


def _add(process_set: ProcessSet) -> None:
    number = next(_world.numbers)
    assert _world.store is not None
    process_set._register(number, _world.store)
    _world.sets[number] = process_set


def rank() -> int:
    """Return this rank's number."""
    return global_process_set.rank()


def size() -> int:
    """Return the number of ranks."""
    return global_process_set.size()


def local_rank() -> int:
    """Return this rank's number on its host; without a launcher that says it, its number."""
    global_process_set._known()
    return int(os.environ.get("LOCAL_RANK", rank()))


def local_size() -> int:
    """Return the number of ranks on this host; without a launcher that says it, of all ranks."""
    global_process_set._known()
    return int(os.environ.get("LOCAL_WORLD_SIZE", size()))


def cross_rank() -> int:
    """Return the number of this host, where hosts have equally many ranks."""
    return rank() // local_size()


def cross_size() -> int:
    """Return the number of hosts, where hosts have equally many ranks."""
    return -(-size() // local_size())


def gloo_enabled() -> bool:
    """Whether Gloo does what reducers do not: always."""
    return True


def gloo_built(verbose: bool = False) -> bool:
    """Whether Gloo does what reducers do not: always."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """Return the version of NCCL that does what reducers do not on GPUs, such as 22907; 0 without GPUs."""
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return int(major) * 10_000 + int(minor) * 100 + int(patch)


def cuda_built(verbose: bool = False) -> bool:
    """Whether there are GPUs."""
    return torch.cuda.is_available()


def mpi_enabled() -> bool:
    """Whether MPI is used: never."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI is used: never."""
    return False


def mpi_threads_supported() -> bool:
    """Whether MPI is used: never."""
    return False


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM's DDL is used: never."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL is used: never."""
    return False


def rocm_built(verbose: bool = False) -> bool:
    """Whether ROCm is used: never."""
    return False

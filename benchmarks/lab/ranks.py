"""Rank processes that live for many measurements, so that no measurement pays for starting them.

The test process sends every command to all ranks over pipes, and waits for all answers. If a rank fails
or dies, all ranks are ended, since the others would wait for it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed as dist

from benchmarks.gpu import nccl_ranks
from benchmarks.lab.hosts import LOOPBACK, Host
from benchmarks.lab.procfs import children, cpu_s
from benchmarks.loads.group import GroupState
from benchmarks.loads.watching import UnwatchedState, WatchedState
from worker_plugin import ReductionState

#: Our contenders in every benchmark's comparison with the ring.
TRANSPORTS = ("tcp", "grpc")
#: Contenders on the TCP plane with another wire dtype.
WIRES = ("bf16", "fp16", "fp8", "int8", "topk")
#: Class and settings of all our contenders. A rank has a state for each. An unused state never connects.
OURS: dict[str, tuple[type[ReductionState], dict[str, Any]]] = {
    "tcp": (ReductionState, {"transport": "tcp"}),
    # No settings: memory is shared with reducers on the same host.
    "default": (ReductionState, {}),
    # "tcp" with its I/O in a separate process.
    "tcp-io-process": (ReductionState, {"transport": "tcp", "io_process": True}),
    # "default" through a process group of the backend "reduction".
    "group": (GroupState, {}),
    # The cost of watching a job, which records nothing or everything.
    "unwatched": (UnwatchedState, {}),
    "watched": (WatchedState, {}),
    "grpc": (ReductionState, {"transport": "grpc"}),
    "checksums": (ReductionState, {"transport": "tcp", "checksums": True}),
    # The ranks' hosts also have reducers if there are fewer reducers than hosts.
    "colocated": (ReductionState, {"transport": "tcp", "colocated": "auto"}),
    # If every rank has its own host, this is the same as flat mode.
    "hierarchical": (ReductionState, {"transport": "tcp", "local_group": "auto"}),
    **{name: (ReductionState, {"transport": "tcp", "wire_dtype": name}) for name in WIRES},
}

#: This variable marks a trial run of a benchmark. Ranks are then forks of a server that has loaded torch, which takes a
#: new process two seconds. It must not be used for figures: 16 MiB at n=k=4 and 1 Gbit/s took 0.92 of the time, for
#: unknown reasons.
TRIED = "BENCHMARK_IS_TRIED"
#: Timeout in seconds from the start of the processes until their process group exists.
START_TIMEOUT_S = 120.0
#: Timeout of a command, in seconds.
CALL_TIMEOUT_S = 120.0
#: Timeout for the end of the ranks, in seconds.
CLOSE_TIMEOUT_S = 60.0


class RanksFailed(Exception):
    """A rank raised an error, died or did not answer. The message names the rank. All ranks were ended."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The arguments of a rank process."""

    rank: int
    world_size: int
    device: str
    #: The network interface that collectives of torch.distributed use.
    interface: str
    #: A folder for this run only. It holds the rendezvous file, and jobs are named after it.
    directory: str
    reducers: tuple[str, ...]
    #: The rank's number on its host and the number of ranks there, as set by a launcher.
    local_rank: int = 0
    local_size: int = 1
    #: Whether NCCL may use only sockets, so that ranks may share a GPU.
    sockets: bool = False
    #: Link rate of the host that our contenders are told, in Mbit/s; 0 means none.
    link_mbit: float = 0.0

    @property
    def nccl_log(self) -> str:
        """The path of this rank's NCCL log."""
        return os.path.join(self.directory, f"nccl-{self.rank}.log")


@dataclass(frozen=True, slots=True)
class Rank:
    """A workload's rank process, which also has the default process group (Gloo, and on GPUs NCCL)."""

    rank: int
    world_size: int
    device: torch.device
    #: The states of our contenders, by their names in OURS.
    states: dict[str, ReductionState]
    #: Number of ranks on its host.
    local_size: int = 1

    def synchronize(self) -> None:
        """Wait until the GPU has finished, which may be after a future is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Ranks:
    """`world_size` rank processes, on this host or each on its own of `hosts`."""

    def __init__(
        self,
        world_size: int,
        reducers: Sequence[str],
        *,
        device: str = "cpu",
        hosts: Sequence[Host] = (),
        sockets: bool = False,
    ) -> None:
        self._setups: list[Setup] = []
        self._directory = tempfile.TemporaryDirectory(prefix="reduction-bench-")
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        try:
            self._start(reducers, device, hosts or [LOOPBACK] * world_size, sockets)
        except BaseException:
            self._kill()
            raise

    def _start(self, reducers: Sequence[str], device: str, hosts: Sequence[Host], sockets: bool) -> None:
        # A fork of this process, with torch's threads, can hang.
        context = multiprocessing.get_context("forkserver" if os.environ.get(TRIED) else "spawn")
        context.set_forkserver_preload([__name__, "torch._dynamo"])  # the second is for DDP
        # `spawn` would start the tracker with the first child, inside that child's namespace.
        resource_tracker.ensure_running()
        for rank, host in enumerate(hosts):
            ours, theirs = context.Pipe()
            local = (hosts[:rank].count(host), hosts.count(host)) if host.namespace else (0, 1)
            directory = self._directory.name
            network = device, host.interface, directory
            setup = Setup(rank, len(hosts), *network, tuple(reducers), *local, sockets, host.link_mbit)
            self._setups.append(setup)
            arguments = theirs, setup, host, dict(os.environ)
            process = context.Process(target=_main, args=arguments, name=f"rank-{rank}", daemon=True)
            with host.entered(), _interrupts_ignored():
                process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self._gather(START_TIMEOUT_S)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        """Their process ids in rank order."""
        return [process.pid for process in self._processes]

    def embedded_cpu_s(self) -> float:
        """Return the CPU seconds of reducers that ranks have started on their own hosts."""
        return sum(cpu_s(child) for pid in self.pids for child in children(pid))

    def load(self, workload: type, *args: object) -> None:
        """Replace every rank's workload by `workload(rank, *args)`."""
        self._command(workload, args)

    def call(self, method: str, *args: object) -> list[Any]:
        """Call a method of every rank's workload, and return the results in rank order."""
        return self._command(method, args)

    def nccl_logs(self) -> list[str]:
        """Return the NCCL log of each rank, which is empty if NCCL was not used."""
        paths = [Path(setup.nccl_log) for setup in self._setups]
        return [path.read_text(errors="replace") if path.exists() else "" for path in paths]

    def close(self) -> None:
        """End the ranks. A rank that does not end in time is killed, which is an error."""
        for connection in self._connections:
            connection.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        late = []
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            late += [process.name] if process.is_alive() else []
            process.kill()
            process.join()
        self._connections.clear()
        self._processes.clear()
        self._directory.cleanup()
        if late:
            raise RanksFailed(f"did not end within {CLOSE_TIMEOUT_S:g} s: {', '.join(late)}")

    def _command(self, command: object, args: tuple[object, ...]) -> list[Any]:
        try:
            self._tell((command, args))
            return self._gather(CALL_TIMEOUT_S)
        except (KeyboardInterrupt, SystemExit):
            # Some ranks may not have received the command, and the others would wait for them.
            self._kill()
            raise

    def _tell(self, command: object) -> None:
        if not self._connections:
            raise RanksFailed("the ranks were ended by an earlier failure")
        for connection in self._connections:
            with suppress(OSError):  # the rank has died; `_gather` reports it
                connection.send(command)

    def _gather(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        waiting = {connection: rank for rank, connection in enumerate(self._connections)}
        answers: list[Any] = [None] * len(waiting)
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                self._abandon(f"no answer within {timeout_s:g} s from ranks {sorted(waiting.values())}")
            for connection in [connection for connection in waiting if connection in ready]:
                rank = waiting.pop(connection)
                try:
                    is_good, answers[rank] = connection.recv()
                except (EOFError, OSError):
                    self._processes[rank].join(1)
                    self._abandon(f"rank {rank} died, exit code {self._processes[rank].exitcode}")
                if not is_good:
                    self._abandon(f"rank {rank} failed:\n{answers[rank]}")
        return answers

    def _abandon(self, reason: str) -> None:
        self._kill()
        raise RanksFailed(reason)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        self.close()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Make processes started in the body ignore Ctrl-C, which reaches all processes of the terminal.

    The parent handles it, and ends the ranks.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _main(connection: Connection, setup: Setup, host: Host, variables: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also if a server has started this process
    os.environ.clear()
    os.environ.update(variables)
    try:
        with host.entered():
            rank = _join(setup)
            connection.send((True, None))
            _obey(connection, rank)
            for state in rank.states.values():
                state.close()
            dist.destroy_process_group()
    except Exception:
        with suppress(OSError):  # the test process was interrupted and no longer reads
            connection.send((False, traceback.format_exc()))


def _obey(connection: Connection, rank: Rank) -> None:
    """Execute commands until the pipe closes. It also closes when the test process dies."""
    workload: Any = None
    while True:
        try:
            command, args = connection.recv()
        except EOFError:
            return
        if isinstance(command, str):
            connection.send((True, getattr(workload, command)(*args)))
        else:
            workload = None  # frees its memory before the next workload allocates
            workload = command(rank, *args)
            connection.send((True, None))


def _join(setup: Setup) -> Rank:
    torch.set_num_threads(1)  # the ranks share the cores
    os.environ["GLOO_SOCKET_IFNAME"] = setup.interface
    os.environ["LOCAL_RANK"] = str(setup.local_rank)
    os.environ["LOCAL_WORLD_SIZE"] = str(setup.local_size)
    device = torch.device("cpu")
    if setup.device == "cuda":
        known = setup.rank, setup.interface, setup.nccl_log
        os.environ.update(
            nccl_ranks.variables(*known, sockets=setup.sockets, version=torch.cuda.nccl.version())
        )
        device = torch.device("cuda", setup.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if setup.device == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{setup.directory}/store",
        rank=setup.rank,
        world_size=setup.world_size,
        timeout=timedelta(seconds=CALL_TIMEOUT_S),
    )
    states = {
        name: state(
            setup.reducers or None,
            job=f"{os.path.basename(setup.directory)}-{name}",
            rank=setup.rank,
            world_size=setup.world_size,
            link=f"{setup.link_mbit:g}M" if setup.link_mbit else None,
            **settings,
        )
        for name, (state, settings) in OURS.items()
    }
    return Rank(setup.rank, setup.world_size, device, states, setup.local_size)

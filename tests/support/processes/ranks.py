"""Rank processes: they run functions of the test modules, and stay alive for the next call.

rank_main.py is the program that they run.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import pickle
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
from support.processes.children import START_S, Log, environment
from support.processes.forks import Fork

from benchmarks.lab.hosts import LOOPBACK, Host

#: Time that the other ranks have to answer after one has failed, in seconds.
GRACE_S = 15.0


class Died:
    """Stands for the answer of a rank process that exited instead of answering; holds its exit code."""

    def __init__(self, code: int | None) -> None:
        self.code = code


class Call:
    """A function that is running in rank processes."""

    def __init__(self, owner: Ranks, processes: list[RankProcess], deadline: float) -> None:
        self._owner = owner
        self._processes = processes
        self._deadline = deadline
        self._answers: dict[int, Any] = {}
        self._news: dict[int, list[Any]] = {index: [] for index in range(len(processes))}

    @property
    def is_done(self) -> bool:
        """Whether all ranks have answered or died."""
        return len(self._answers) == len(self._processes)

    def hear(self, index: int) -> Any:
        """Return the next value that this rank sent."""
        while not self._news[index]:
            if index in self._answers or not self._receive():
                self._give_up(f"rank {index} told nothing")
        return self._news[index].pop(0)

    def tell(self, index: int, value: Any) -> None:
        """Send a value to a rank, which receives it with `hear`."""
        self._processes[index].connection.send_bytes(pickle.dumps(value))

    def wait_for(self, *indices: int) -> None:
        """Wait until these ranks have answered."""
        while not set(indices) <= self._answers.keys():
            if not self._receive():
                self._give_up(f"ranks {indices} have not answered")

    def answers(self) -> list[Any]:
        """Wait for all ranks; return what they returned, or `Died`. A rank's exception fails the test."""
        while not self.is_done:
            if not self._receive():
                self._give_up("no answer")
        if any(kind == "error" for kind, _ in self._answers.values()):
            self._give_up("an exception")
        return [self._answers[index][1] for index in range(len(self._processes))]

    def _receive(self) -> bool:
        open_ones = {
            source: index
            for index, process in enumerate(self._processes)
            if index not in self._answers
            for source in (process.connection, process.process.sentinel)
        }
        ready = connection.wait(list(open_ones), max(0.0, self._deadline - time.monotonic()))
        for index in sorted({open_ones[source] for source in ready}):  # type: ignore[index]
            process = self._processes[index]
            try:
                # The connection may outlive the process, for example if a forked DataLoader child still holds it.
                if not process.connection.poll(0):
                    raise EOFError
                kind, value = pickle.loads(process.connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                kind, value = "died", Died(process.process.wait(START_S))
            if kind == "news":
                self._news[index].append(value)
                continue
            self._answers[index] = (kind, value)
            if kind == "error":
                self._deadline = min(self._deadline, time.monotonic() + GRACE_S)
        return bool(ready)

    def _give_up(self, why: str) -> None:
        report = [why]
        for index, process in enumerate(self._processes):
            kind, value = self._answers.get(index, ("nothing", None))
            if kind == "nothing":
                process.dump_stacks()
            report.append(f"--- rank {index}: {kind}")
            if kind == "error":
                report.append(value)
            if kind != "result":
                report.append(f"stderr: ...{process.log.text[-5000:]}")
        self._owner.kill()
        pytest.fail("\n".join(report), pytrace=False)


class RankProcess:
    """One process that runs rank_main.py."""

    def __init__(self, directory: Path, host: Host = LOOPBACK) -> None:
        self.log = Log(directory / f"rank-{uuid.uuid4().hex[:6]}.log")
        self.connection, theirs = connection.Pipe()
        with theirs:
            log = self.log.path
            self.process = Fork(_main, theirs, out=log, log=log, variables=environment(), host=host)

    def dump_stacks(self) -> None:
        """Have the process write the stacks of all its threads to its log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)

    def stop(self, timeout_s: float) -> None:
        """Close its connection, which makes it exit; kill it if it does not."""
        self.connection.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _main(connection: connection.Connection) -> None:
    # Not imported above, because this process need not load torch.
    importlib.import_module("support.processes.rank_main").main(connection)


class Ranks:
    """Processes that run functions of test modules. They stay alive for the next call, because torch loads slowly."""

    #: Data plane of states whose settings name none. None is the product's default.
    plane: str | None = None

    def __init__(self, directory: Path) -> None:
        self.processes: list[RankProcess] = []
        self._directory = directory
        self._count = itertools.count()
        self._call: Call | None = None

    def run(self, count: int, function: Callable[..., Any], *arguments: Any, **settings: Any) -> list[Any]:
        """Call function(rank, *arguments) on `count` ranks; return their answers in rank order."""
        return self.begin(count, function, *arguments, **settings).answers()

    def begin(
        self,
        count: int,
        function: Callable[..., Any],
        *arguments: Any,
        first: int = 0,
        group: bool = True,
        timeout_s: float = 90.0,
    ) -> Call:
        """Start the call.

        Args:
            count: number of ranks.
            function: of a test module, not nested.
            *arguments: passed to it after its `Rank`.
            first: process that is rank 0; the others follow.
            group: whether torch.distributed is initialised, with gloo.
            timeout_s: its time limit.
        """
        self.abandon()
        while len(self.processes) < first + count:
            self.processes.append(RankProcess(self._directory))
        store = str(self._directory / f"store-{next(self._count)}") if group else None
        chosen = self.processes[first : first + count]
        path = inspect.getfile(function)
        for number, process in enumerate(chosen):
            call = (path, function.__qualname__, number, count, store, self.plane, arguments)
            process.connection.send_bytes(pickle.dumps(call))
        self._call = Call(self, chosen, time.monotonic() + timeout_s)
        return self._call

    def abandon(self) -> None:
        """End the processes if a test has left a call unfinished."""
        if self._call is not None and not self._call.is_done:
            self.kill()
        self._call = None

    def check(self) -> None:
        """Fail if a rank has logged a bug."""
        for process in self.processes:
            process.log.check()

    def kill(self) -> None:
        """Send SIGKILL to all; the next call gets new ones."""
        for process in self.processes:
            process.process.kill()
            process.stop(START_S)
        self.processes.clear()

    def stop(self) -> None:
        """End all concurrently, because they may have states to close together."""
        for process in self.processes:
            process.connection.close()
        for process in self.processes:
            process.stop(START_S)
        self.processes.clear()

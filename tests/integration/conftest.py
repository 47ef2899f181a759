"""Real `reducer serve` processes and real rank processes, for all integration tests.

    reducers(k)                addresses of k reducers that all tests share; checked after every test
    serve(*options)            a reducer of this test's own
    ranks.run(n, function)     call function(rank, ...) in n processes that all tests share (rank_main.py)
    fresh_ranks()              rank processes of this test's own, to be killed

Nothing here waits without a deadline, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

READY = "listening on "
START_S = 30.0
#: How long ranks may take after one of them has failed, in seconds.
GRACE_S = 15.0
#: What no process of ours may write to its log, whatever happens to it.
OUR_BUGS = ("Traceback", "never retrieved", "level=ERROR", "Fatal Python error", "terminate called")


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a child: no settings of the caller's, loopback only."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDUCTION_")}
    return kept | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | more


def poll_until(condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> Any:
    """Return the condition's first true value; fail when it takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.01)
    return value


class Log:
    """A process's stderr in a file; complains about new lines that show a bug of ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked = 0

    @property
    def text(self) -> str:
        """All that was written so far."""
        return self.path.read_text(errors="replace")

    def check(self) -> None:
        """Fail if anything new is a bug's trace."""
        text = self.text
        new, self._checked = text[self._checked :], len(text)
        found = [mark for mark in OUR_BUGS if mark in new]
        assert not found, f"{self.path.name} shows {found}:\n{new[-6000:]}"


class Reducer:
    """One `reducer serve` process; on a leash it also ends when this process is killed."""

    def __init__(self, directory: Path, *options: str, bind: str = "127.0.0.1:0", leash: bool = True) -> None:
        self.log = Log(directory / f"reducer-{uuid.uuid4().hex[:6]}.log")
        command = [sys.executable, "-m", "reducer", "serve", "--bind", bind, *options]
        if leash:
            command.append("--stop-with-stdin")
        with self.log.path.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if leash else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else ""
        if not line.startswith(READY):
            self.kill()
            pytest.fail(f"no reducer: {line!r}, exit code {self.process.returncode}, log:\n{self.log.text}")
        self.address = line.removeprefix(READY).strip()
        #: Whether the test means it to be gone.
        self.is_over = False

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self.process.pid

    @property
    def port(self) -> int:
        """Port that it serves."""
        return int(self.address.rpartition(":")[2])

    def stop(self, timeout_s: float = 15.0) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and what came on stdout after the first line."""
        self.is_over = True
        self.process.terminate()
        return self.end(timeout_s)

    def end(self, timeout_s: float = 15.0) -> tuple[int, str]:
        """Wait until it ends; return the exit code and what came on stdout after the first line."""
        self.is_over = True
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still there after {timeout_s:g} s:\n{self.log.text}") from None
        assert self.process.stdout is not None
        return self.process.returncode, self.process.stdout.read()

    def kill(self) -> None:
        """Kill it like a crash would; nothing if it is over already."""
        self.is_over = True
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def check(self) -> None:
        """Fail if it died by itself or logged a bug."""
        self.log.check()
        if not self.is_over and self.process.poll() is not None:
            self.kill()
            pytest.fail(f"a reducer died with {self.process.returncode}:\n{self.log.text[-6000:]}")


class Died:
    """What a rank process that ended instead of answering has said."""

    def __init__(self, code: int | None) -> None:
        self.code = code


class Call:
    """A function that runs in rank processes at this moment."""

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
        """Return the next value that this rank told."""
        while not self._news[index]:
            if index in self._answers or not self._receive():
                self._give_up(f"rank {index} told nothing")
        return self._news[index].pop(0)

    def tell(self, index: int, value: Any) -> None:
        """Send a value to a rank that waits for one, or will."""
        self._processes[index].connection.send_bytes(pickle.dumps(value))

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
            process.connection: index
            for index, process in enumerate(self._processes)
            if index not in self._answers
        }
        ready = connection.wait(list(open_ones), max(0.0, self._deadline - time.monotonic()))
        for channel in ready:
            index = open_ones[channel]  # type: ignore[index]
            try:
                kind, value = pickle.loads(self._processes[index].connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                kind, value = "died", Died(self._processes[index].process.wait(START_S))
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

    def __init__(self, directory: Path) -> None:
        self.log = Log(directory / f"rank-{uuid.uuid4().hex[:6]}.log")
        self.connection, theirs = connection.Pipe()
        command = [sys.executable, str(Path(__file__).with_name("rank_main.py")), str(theirs.fileno())]
        with self.log.path.open("w") as log, theirs:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment(),
            )

    def dump_stacks(self) -> None:
        """Have it write where its threads are to its log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)

    def stop(self, timeout_s: float) -> None:
        """Close its connection, upon which it ends; kill it if it does not."""
        self.connection.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Ranks:
    """Processes that run functions of test modules; they stay for the next call, and so does torch."""

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
        timeout_s: float = 60.0,
    ) -> Call:
        """Start the call.

        Args:
            count: how many ranks.
            function: of a test module, not nested.
            *arguments: handed to it after its `Rank`.
            first: process that is rank 0; the others follow.
            group: whether torch.distributed is initialised, with gloo.
            timeout_s: how long it may take.
        """
        self.abandon()
        while len(self.processes) < first + count:
            self.processes.append(RankProcess(self._directory))
        store = str(self._directory / f"store-{next(self._count)}") if group else None
        chosen = self.processes[first : first + count]
        path = inspect.getfile(function)
        for number, process in enumerate(chosen):
            call = (path, function.__qualname__, number, count, store, arguments)
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
        """SIGKILL to all; the next call gets new ones."""
        for process in self.processes:
            process.process.kill()
            process.stop(START_S)
        self.processes.clear()

    def stop(self) -> None:
        """End all."""
        for process in self.processes:
            process.stop(START_S)
        self.processes.clear()


@pytest.fixture(scope="session")
def _shared_reducers() -> Iterator[list[Reducer]]:
    running: list[Reducer] = []
    yield running
    try:
        for reducer in running:
            assert reducer.stop() == (0, "")
    finally:
        for reducer in running:
            reducer.kill()


@pytest.fixture
def reducers(
    _shared_reducers: list[Reducer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], list[str]]]:
    directory = tmp_path_factory.getbasetemp()

    def some(count: int) -> list[str]:
        while len(_shared_reducers) < count:
            _shared_reducers.append(Reducer(directory))
        return [reducer.address for reducer in _shared_reducers[:count]]

    yield some
    try:
        for reducer in _shared_reducers:
            reducer.check()
    finally:
        _shared_reducers[:] = [reducer for reducer in _shared_reducers if not reducer.is_over]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Reducer]]:
    running: list[Reducer] = []

    def one(*options: str, **settings: Any) -> Reducer:
        running.append(Reducer(tmp_path, *options, **settings))
        return running[-1]

    yield one
    try:
        for reducer in running:
            reducer.check()
    finally:
        for reducer in running:
            reducer.kill()


@pytest.fixture(scope="session")
def _shared_ranks(
    tmp_path_factory: pytest.TempPathFactory, _shared_reducers: list[Reducer]
) -> Iterator[Ranks]:
    # After the reducers, so that the ranks are gone before those are asked to drain.
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.stop()


@pytest.fixture
def ranks(_shared_ranks: Ranks) -> Iterator[Ranks]:
    yield _shared_ranks
    _shared_ranks.abandon()
    _shared_ranks.check()


@pytest.fixture
def fresh_ranks(tmp_path: Path) -> Iterator[Callable[[], Ranks]]:
    made: list[Ranks] = []

    def some() -> Ranks:
        made.append(Ranks(tmp_path))
        return made[-1]

    yield some
    try:
        for ranks in made:
            ranks.check()
    finally:
        for ranks in made:
            ranks.kill()


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """Return a job name that no other test uses."""
    return f"{request.node.name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def until() -> Callable[..., Any]:
    """Return `poll_until`."""
    return poll_until


@pytest.fixture
def child_environment() -> Callable[..., dict[str, str]]:
    """Return `environment`."""
    return environment


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Return a function that finds a port for a reducer that comes and goes.

    Below the ports that the kernel gives to outgoing connections: those may take one while its owner is away.
    """

    def find() -> int:
        while True:
            port = random.randint(20_000, 32_000)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port

    return find

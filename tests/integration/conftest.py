"""Real `reducer serve` processes and real rank processes, for all integration tests.

    reducers(k)                addresses of k reducers that all tests share; checked after every test
    reducer                    the first of them
    serve(*options)            a reducer of this test only
    ranks.run(n, function)     call function(rank, ...) in n processes that all tests share (rank_main.py)
    fresh_ranks()              rank processes of this test only, to be killed
    plane                      runs the test once over TCP, once over gRPC, once with shared memory

Nothing here waits without a deadline, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes.children import environment
from support.processes.ranks import Ranks
from support.processes.reducers import Reducer


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
def reducer(reducers: Callable[[int], list[str]], _shared_reducers: list[Reducer]) -> Reducer:
    """Return one of the reducers that all tests share, for its log and its process."""
    reducers(1)
    return _shared_reducers[0]


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
    # After the reducers, so that the ranks have exited before the reducers are asked to drain.
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


@pytest.fixture(params=["tcp", "grpc", "auto"], ids=["tcp", "grpc", "shared"])
def plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make all ranks use one data plane and no other; a test that requests it runs once over each.

    With "auto", ranks and reducers share memory, because they are on one host.
    """
    monkeypatch.setattr(Ranks, "plane", request.param)
    return request.param


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """Return a job name that no other test uses."""
    return f"{request.node.name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def until() -> Callable[..., Any]:
    """Return a function that waits for a condition's first true value, and fails if it takes too long."""

    def poll(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"waited {timeout_s:g} s in vain for {what}")
            time.sleep(0.01)
        return value

    return poll


@pytest.fixture
def child_environment() -> Callable[..., dict[str, str]]:
    """Return `children.environment`."""
    return environment


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Return a function that finds a port for a reducer that is restarted.

    Below the ports that the kernel gives to outgoing connections, which may take one while its owner is away.
    """

    def find() -> int:
        for port in _own_ports():
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port
        raise AssertionError("all ports of this process were given to tests")

    return find


@functools.cache
def _own_ports() -> Iterator[int]:
    """Return up to 16 ports in any order, each once, that no other process of pytest-xdist returns."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = list(range(20_000 + number, 32_000, 16))
    random.shuffle(ports)
    return iter(ports)

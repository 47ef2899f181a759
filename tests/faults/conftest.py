"""Faults in real processes: the harness of the integration tests, and breakable paths to a reducer.

detour(reducer)   a way to that reducer through relays, for the rank that meets the fault
faulty_reducer()  a reducer that detours can lead to
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from integration.conftest import (  # noqa: F401
    _shared_ranks,
    _shared_reducers,
    child_environment,
    free_port,
    fresh_ranks,
    job,
    plane,
    ranks,
    reducers,
    serve,
    until,
)
from support.network.faulty_relay import NO_FAULT, Fault, FaultyRelay
from support.processes.reducers import Reducer


class Detour:
    """A path to one reducer over another loopback address; both its ports lead through relays."""

    def __init__(self, reducer: Reducer, data_port: int, host: str) -> None:
        self.calls = FaultyRelay(reducer.port, host)
        # The reducer advertises the number of its data port, and the worker uses the host that it has dialled.
        self.data = FaultyRelay(data_port, host, data_port)
        self.address = f"{host}:{self.calls.port}"

    def set(self, *, up: Fault = NO_FAULT, down: Fault = NO_FAULT) -> None:
        """Set these faults on both ports; `up` is to the reducer."""
        self.calls.set(up=up, down=down)
        self.data.set(up=up, down=down)

    def reset(self) -> None:
        """Reset all connections, including held bytes; new ones have no fault."""
        for relay in (self.calls, self.data):
            relay.reset()
            relay.set()

    def cut(self) -> None:
        """Reset all connections, and accept no more."""
        self.calls.cut()
        self.data.cut()


@pytest.fixture
def faulty_reducer(serve, free_port) -> Callable[[], tuple[Reducer, int]]:  # noqa: F811
    """Return a function that starts a reducer and returns it with its data port."""

    def start() -> tuple[Reducer, int]:
        data_port = free_port()
        return serve("--data-port", str(data_port), bind=f"127.0.0.1:{free_port()}"), data_port

    return start


@pytest.fixture
def detour() -> Iterator[Callable[[tuple[Reducer, int]], Detour]]:
    made: list[Detour] = []

    def lead(reducer: tuple[Reducer, int]) -> Detour:
        made.append(Detour(*reducer, host=f"127.0.0.{2 + len(made)}"))
        return made[-1]

    yield lead
    for one in made:
        one.cut()


@pytest.fixture
def stopped() -> Iterator[Callable[[int], None]]:
    """Return a function that stops a process; it continues at the end of the test at the latest."""
    pids: list[int] = []

    def stop(pid: int) -> None:
        pids.append(pid)
        os.kill(pid, signal.SIGSTOP)

    yield stop
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue

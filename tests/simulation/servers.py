"""Servers: each is one `reducer serve` with one or more processes on its own host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from reduction.model import Place
from simulation.network import Network
from simulation.reducer import SimReducer

MEMORY_BYTES = 64 << 20
#: Port of the first process, whose address is the one that jobs get.
PORT = 50051


class Server:
    """The processes of one `reducer serve`, and the supervisor that restarts them.

    Args:
        network: its network.
        host: its name.
        processes: number of processes.
        place: of the host.
        record: receives what happens, for the checker.
        make: creates a process, as `SimReducer` does.
        memory_bytes: the limit of each process.
    """

    def __init__(
        self,
        network: Network,
        host: str,
        processes: int,
        place: Place,
        record: Callable[..., None],
        make: Callable[..., SimReducer] = SimReducer,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.network, self.host, self._record = network, host, record
        self._make, self._memory_bytes = make, memory_bytes
        self._place = place
        #: Number of supervisors so far, and of their processes.
        self._supervisors = self._lives = 0
        #: Numbers of the processes that wait for a restart.
        self._waiting: set[int] = set()
        self._processes = processes
        self._is_stopping = False
        self.reducers: list[SimReducer] = []
        self._begin()

    @property
    def address(self) -> str:
        """The address that jobs get."""
        return f"{self.host}:{PORT}"

    @property
    def is_alive(self) -> bool:
        """Whether at least one of its processes is alive."""
        return any(reducer.is_alive for reducer in self.reducers)

    def kill(self, number: int, restart_s: float) -> None:
        """Kill a process; the supervisor starts another one on the same port after a while."""
        if self.reducers[number].is_alive:
            self.reducers[number].kill()
            self._later(number, restart_s)

    def stop(self, restart_s: float, *, host: str = "") -> None:
        """Kill all processes; others start later, on new ports except the first, and perhaps on another host."""
        for reducer in self.reducers:
            reducer.kill()
        self.host = host or self.host
        self._supervisors += 1
        supervisor = self._supervisors
        self.network.clock.at(self.network.clock.now + restart_s, lambda: self._begin_as(supervisor))

    @property
    def may_drain(self) -> bool:
        """Whether it is alive and not already stopping."""
        return self.is_alive and not self._is_stopping

    def drain(self, limit_s: float, restart_s: float) -> None:
        """Stop as on SIGTERM, and start again once that is done."""
        self._is_stopping = True
        for reducer in self.reducers:
            if reducer.is_alive:
                reducer.drain(limit_s)
        self._stop_when_gone(self._supervisors, restart_s)

    def _stop_when_gone(self, supervisor: int, restart_s: float) -> None:
        if supervisor != self._supervisors:
            return
        if self.is_alive:
            at = self.network.clock.now + 0.1
            self.network.clock.at(at, lambda: self._stop_when_gone(supervisor, restart_s))
        else:
            self.stop(restart_s)

    def _begin_as(self, supervisor: int) -> None:
        if supervisor == self._supervisors:
            self._begin()

    def _begin(self) -> None:
        # A new supervisor holds other ports for all but the first process.
        ports = [PORT, *(PORT + 10 * self._supervisors + number for number in range(1, self._processes))]
        self._waiting.clear()
        self._is_stopping = False
        self.reducers = [
            self._reducer(f"{self.host}:{port}", () if number else tuple(ports[1:]))
            for number, port in enumerate(ports)
        ]

    def _reducer(self, address: str, siblings: tuple[int, ...]) -> SimReducer:
        self._lives += 1
        return self._make(
            self.network, address, self._lives, self._memory_bytes, self._place, siblings, self._record
        )

    def _later(self, number: int, restart_s: float) -> None:
        if number not in self._waiting:
            self._waiting.add(number)
            at = self.network.clock.now + restart_s
            self.network.clock.at(at, partial(self._again, number, self._supervisors))

    def _again(self, number: int, supervisor: int) -> None:
        if supervisor == self._supervisors and not self._is_stopping:
            self._waiting.discard(number)
            old = self.reducers[number]
            self.reducers[number] = self._reducer(old.address, old.siblings)

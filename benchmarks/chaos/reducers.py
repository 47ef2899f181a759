"""Reducers that get signals on a schedule, and are restarted on the same address, as systemd would do.

Each reducer has a thread that starts it, waits for it to end, and restarts it. Another thread sends the signals, which
are called strikes. Reducers that ranks have started on their own hosts are struck too, if there are any; their ranks
restart them. A reducer that ends without a strike is a failure.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from reduction.process.ready import close, wait_until_ready

from benchmarks.lab.hosts import LOOPBACK, Host
from benchmarks.lab.procfs import children, listens
from benchmarks.lab.ranks import RanksFailed
from benchmarks.lab.reducers import START_TIMEOUT_S, STOP_TIMEOUT_S, start

#: Ports for reducers, below those that Linux assigns to outgoing connections. Otherwise an outgoing
#: connection could take the port of a reducer that is down. Even the connection attempt to that
#: reducer could do so, and TCP would then connect the socket to itself.
PORTS = range(20_000, 32_000)
#: The pause between two strikes is the mean pause times a random number in this range.
JITTER = (0.5, 1.5)
#: Maximum interval in seconds at which the striking thread polls the reducers.
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Strike:
    """One signal to one reducer, as planned."""

    #: Seconds since the schedule began, not counting times when no reducer was serving. Otherwise
    #: strikes at a single reducer would pile up while it is down, and each would hit it the moment
    #: it serves again.
    at_s: float
    #: Index of the reducer. If it is down at that moment, the next one that is serving gets the signal.
    reducer: int


def schedule(seed: int, strikes: int, every_s: float, reducers: int) -> list[Strike]:
    """Return the strikes ordered by time. The same seed gives the same schedule."""
    draw = random.Random(seed)
    at_s = 0.0
    planned = []
    for _ in range(strikes):
        at_s += every_s * draw.uniform(*JITTER)
        planned.append(Strike(at_s, draw.randrange(reducers)))
    return planned


@dataclass(slots=True)
class Struck:
    """A strike that was carried out."""

    #: On the monotonic clock, which all processes of a machine share.
    at_s: float
    reducer: int
    #: Number of other reducers that were serving at that moment.
    others: int
    #: Whether the reducer was started by a rank on its own host.
    is_colocated: bool = False
    #: The time at which the reducer was serving again.
    back_s: float = math.inf


class _Target:
    """A reducer that can be struck."""

    def __init__(self) -> None:
        #: None while it is not serving.
        self.pid: int | None = None
        #: The strike from which it has not recovered yet.
        self.struck: Struck | None = None
        #: Whether that strike ends the process.
        self.is_ending = False

    def serves(self, pid: int) -> None:
        """Record that it is serving, for the first time or again."""
        if self.struck is not None:
            self.struck.back_s, self.struck = time.monotonic(), None
        self.pid = pid

    def strike(self, which: signal.Signals, struck: Struck, stop_for_s: float) -> None:
        pid, self.pid, self.struck = self.pid, None, struck
        assert pid is not None
        self.is_ending = which is not signal.SIGSTOP
        with contextlib.suppress(ProcessLookupError):  # it ended on its own, which is noticed elsewhere
            os.kill(pid, which)
        if not self.is_ending:
            wake = threading.Timer(stop_for_s, self._wake, [pid])
            wake.daemon = True
            wake.start()

    def _wake(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it was killed at the end of the run
            os.kill(pid, signal.SIGCONT)
            self.serves(pid)


class _Colocated(_Target):
    """The reducer of one rank. The rank restarts it automatically."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self.look()

    def look(self) -> None:
        """Check whether it is serving again."""
        if self.pid is None:
            for pid in filter(listens, children(self._rank)):
                self.serves(pid)


class _Own(_Target):
    """A reducer that this process starts."""

    def __init__(self, host: Host, port: int) -> None:
        super().__init__()
        self.host, self.port = host, port
        self.address = f"{host.address}:{port}"
        self.process: subprocess.Popen[str] | None = None
        self.restarts = 0

    def keep(self, ends: threading.Event, restart_after_s: float) -> None:
        """Start it, and restart it whenever a strike has ended it, until `ends` is set."""
        while not ends.is_set():
            self.process = start(self.host, self.port, log_level="error")
            wait_until_ready(self.process, START_TIMEOUT_S)
            self.serves(self.process.pid)
            code = self.process.wait()
            close(self.process, 0.0)
            if not self.is_ending and not ends.is_set():
                raise RanksFailed(f"the reducer {self.address} ended by itself, exit code {code}")
            self.is_ending = False
            if not ends.wait(restart_after_s):
                self.restarts += 1


class ChaosReducers:
    """`count` reducers that are restarted after strikes, on loopback or each on its own host of `hosts`."""

    def __init__(
        self,
        count: int,
        which: str,
        *,
        restart_after_s: float,
        stop_for_s: float,
        hosts: Sequence[Host] = (),
    ) -> None:
        self._signal, self._stop_for_s = signal.Signals[f"SIG{which}"], stop_for_s
        at = hosts or [LOOPBACK] * count
        self._own = [_Own(host, port) for host, port in zip(at, _free_ports(count), strict=True)]
        self._colocated: list[_Colocated] = []
        #: HOST:PORT of each reducer, the same after every restart.
        self.addresses = [reducer.address for reducer in self._own]
        #: The strikes that were carried out. It is complete once `is_over` is true.
        self.struck: list[Struck] = []
        self._ends, self._over = threading.Event(), threading.Event()
        self._failure: RanksFailed | None = None
        self._threads = [
            self._thread(partial(reducer.keep, self._ends, restart_after_s)) for reducer in self._own
        ]
        #: Maximum time in seconds until one of our own reducers must be serving again.
        self._back_max_s = stop_for_s + STOP_TIMEOUT_S + restart_after_s + START_TIMEOUT_S

    def _thread(self, run: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except Exception as error:  # without this the other threads would wait forever
                if not self._ends.is_set():
                    self._failure = error if isinstance(error, RanksFailed) else RanksFailed(repr(error))

        return threading.Thread(target=guarded, daemon=True)

    def start(self) -> None:
        """Start all reducers, and wait until they are serving."""
        for thread in self._threads:
            thread.start()
        while any(reducer.pid is None for reducer in self._own):
            self.check()
            time.sleep(0.02)

    def strike(self, planned: Sequence[Strike], ranks: Sequence[int] = ()) -> None:
        """Begin a schedule. Reducers started by the processes `ranks` are numbered after our own.

        Raises:
            RanksFailed: one of these ranks has not started a reducer.
        """
        self._colocated = [_Colocated(pid) for pid in ranks]
        if not all(reducer.pid for reducer in self._colocated):
            raise RanksFailed(f"not every rank has a reducer on its host; the ranks are {list(ranks)}")
        self._threads.append(self._thread(partial(self._strike_all, planned)))
        self._threads[-1].start()

    @property
    def restarts(self) -> int:
        """How often one of our own reducers was restarted."""
        return sum(reducer.restarts for reducer in self._own)

    @property
    def is_over(self) -> bool:
        """Whether the schedule was carried out and all reducers are serving again."""
        return self._over.is_set()

    def check(self) -> None:
        """Raise the failure that a thread has seen, if any.

        Raises:
            RanksFailed: a reducer ended on its own, or did not come back.
        """
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End all of our own reducers, including stopped ones."""
        self._ends.set()
        for thread in self._threads:
            while thread.is_alive():
                for reducer in self._own:
                    if reducer.process is not None:
                        reducer.process.kill()
                thread.join(_LOOK_S)

    def _strike_all(self, planned: Sequence[Strike]) -> None:
        targets: list[_Target] = [*self._own, *self._colocated]
        passed_s, looked_s = 0.0, time.monotonic()
        for strike in planned:
            while not (serving := self._serving(targets)) or passed_s < strike.at_s:
                if self._ends.wait(min(_LOOK_S, max(0.001, strike.at_s - passed_s))):
                    return
                now = time.monotonic()
                passed_s += now - looked_s if serving else 0.0
                looked_s = now
            index = min(serving, key=lambda candidate: (candidate - strike.reducer) % len(targets))
            struck = Struck(time.monotonic(), index, len(serving) - 1, index >= len(self._own))
            self.struck.append(struck)
            targets[index].strike(self._signal, struck, self._stop_for_s)
        while len(self._serving(targets)) < len(targets):
            if self._ends.wait(_LOOK_S):
                return
        self._over.set()

    def _serving(self, targets: Sequence[_Target]) -> list[int]:
        """Return the indices of the reducers that are serving."""
        for colocated in self._colocated:
            colocated.look()
        late_s = time.monotonic() - self._back_max_s
        for reducer in self._own:
            if (struck := reducer.struck) is not None and struck.at_s < late_s:
                raise RanksFailed(f"{reducer.address} does not serve {self._back_max_s:g} s after its strike")
        return [index for index, target in enumerate(targets) if target.pid is not None]


def _free_ports(count: int) -> list[int]:
    """Return `count` ports on which no process listens."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server((LOOPBACK.address, port)):
            ports += [port] if port not in ports else []
    return ports

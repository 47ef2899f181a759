"""Reducers that get signals by a schedule, and a supervisor that starts them again, as systemd would.

state of a reducer   left by
starting             its line on stdout: serving
serving              KILL or TERM: ending. STOP: stopped
stopped              after `stop_for_s` SIGCONT: serving
ending               its end: down
down                 after `restart_after_s` it is started on the same address: starting

Reducers that ranks have started on their own hosts are struck too, if there are any. Nobody here starts
these again: their ranks do.

One thread does all of this. If a reducer ends without a strike, that is a failure.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import random
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from reduction.process.ready import ready_address

from benchmarks.chaos.schedule import Strike
from benchmarks.lab.hosts import LOOPBACK, Host
from benchmarks.lab.procfs import children, listens
from benchmarks.lab.reducers import START_TIMEOUT_S, STOP_TIMEOUT_S, start

#: Ports for reducers, below those that Linux gives to outgoing connections. Otherwise an outgoing
#: connection could take the port of a reducer that is down. Even the connection attempt to that
#: reducer could, and TCP would then connect the socket to itself.
PORTS = range(20_000, 32_000)
#: Most seconds until the supervisor reads the clock again.
_LOOK_S = 0.1


class ReducersFailed(Exception):
    """A reducer ended or did not start, and no strike caused it."""


class State(enum.Enum):
    """The state of a reducer, see the table in the module's docstring."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPED = "stopped"
    ENDING = "ending"
    DOWN = "down"


@dataclass(slots=True)
class Struck:
    """A strike that was carried out."""

    #: On the monotonic clock, which all processes of a machine share.
    at_s: float
    reducer: int
    #: Number of other reducers that served at that moment.
    others: int
    #: Whether a rank has started it, on its own host.
    is_colocated: bool = False
    #: The time at which the reducer served again.
    back_s: float = math.inf


class _Reducer:
    def __init__(self, host: Host, port: int) -> None:
        self.host, self.port = host, port
        self.state = State.DOWN
        #: The time at which `state` ends by itself: at the restart, at the SIGCONT, or when
        #: starting or ending has taken too long.
        self.due_s = 0.0
        self.process: subprocess.Popen[str] | None = None
        #: The strike after which it does not serve yet.
        self.struck: Struck | None = None

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    def serves(self, now: float) -> None:
        """Note that it serves, for the first time or again."""
        self.state, self.due_s = State.SERVING, math.inf
        if self.struck is not None:
            self.struck.back_s, self.struck = now, None


class _Colocated:
    """The reducer of one rank, which starts it again by itself."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._pid = self._serving_pid()
        #: The strike after which it does not serve yet.
        self.struck: Struck | None = None

    @property
    def serves(self) -> bool:
        return self._pid is not None

    def strike(self, which: signal.Signals) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself; the rank says so
            os.kill(self._pid, which)
        self._pid = None

    def look(self, now: float) -> None:
        """Find out whether it serves again."""
        if self._pid is None and (pid := self._serving_pid()) is not None:
            self._pid = pid
            if self.struck is not None:
                self.struck.back_s, self.struck = now, None

    def _serving_pid(self) -> int | None:
        return next((pid for pid in children(self._rank) if listens(pid)), None)


class ChaosReducers:
    """`count` reducers on loopback or each on its own of `hosts`, under a supervisor."""

    def __init__(
        self,
        count: int,
        which: str,
        *,
        restart_after_s: float,
        stop_for_s: float,
        hosts: Sequence[Host] = (),
    ) -> None:
        self._signal = signal.Signals[f"SIG{which}"]
        self._restart_after_s = restart_after_s
        self._stop_for_s = stop_for_s
        at = hosts or [LOOPBACK] * count
        self._reducers = [_Reducer(host, port) for host, port in zip(at, _free_ports(count), strict=True)]
        self._colocated: list[_Colocated] = []
        #: HOST:PORT of each, the same after every restart.
        self.addresses = [reducer.address for reducer in self._reducers]
        #: The strikes that were carried out. Read it when `is_over`.
        self.struck: list[Struck] = []
        self.restarts = 0
        self._planned: list[Strike] = []
        #: Seconds of the schedule that have passed, None before it begins; and the last reading of
        #: the clock.
        self._passed_s: float | None = None
        self._looked_s = 0.0
        self._selector = selectors.DefaultSelector()
        self._ends = threading.Event()
        self._over = threading.Event()
        self._failure: ReducersFailed | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start all reducers, and wait until they serve."""
        self._thread.start()
        while any(reducer.state is not State.SERVING for reducer in self._reducers):
            self.check()
            time.sleep(0.02)

    def strike(self, planned: Sequence[Strike], ranks: Sequence[int] = ()) -> None:
        """Begin a schedule. The reducers that the processes `ranks` have started have the numbers after ours.

        Raises:
            ReducersFailed: one of these ranks has started none.
        """
        colocated = [_Colocated(pid) for pid in ranks]
        if not all(reducer.serves for reducer in colocated):
            raise ReducersFailed(f"not every rank has a reducer on its host; the ranks are {list(ranks)}")
        self._over.clear()
        self._colocated = colocated
        self._planned = list(planned)
        self._looked_s = time.monotonic()
        self._passed_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the schedule was carried out, and all reducers serve again."""
        return self._over.is_set()

    def check(self) -> None:
        """Raise the failure that the supervisor has seen, if any.

        Raises:
            ReducersFailed: a reducer ended by itself.
        """
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End all reducers, also stopped ones."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()
        for reducer in self._reducers:
            if reducer.process is not None:
                reducer.process.kill()
                self._reap(reducer)
        self._selector.close()

    # ---- the supervisor's thread ----

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                now = time.monotonic()
                for reducer in self._reducers:
                    if now >= reducer.due_s:
                        self._on_due(reducer, now)
                self._strike_what_is_due(now)
                for key, _ in self._selector.select(max(0.0, self._next_due_s() - time.monotonic())):
                    self._on_output(key.data, time.monotonic())
        except ReducersFailed as failure:
            self._failure = failure
        except Exception as error:  # without this the other threads would wait for ever
            self._failure = ReducersFailed(f"the supervisor failed: {error!r}")

    def _next_due_s(self) -> float:
        due_s = [reducer.due_s for reducer in self._reducers] + [time.monotonic() + _LOOK_S]
        if self._planned and self._passed_s is not None and self._serving:
            due_s.append(self._looked_s + self._planned[0].at_s - self._passed_s)
        return min(due_s)

    def _on_due(self, reducer: _Reducer, now: float) -> None:
        match reducer.state:
            case State.DOWN:
                self._start(reducer, now)
            case State.STOPPED:
                assert reducer.process is not None
                reducer.process.send_signal(signal.SIGCONT)
                reducer.serves(now)
            case State.STARTING | State.ENDING:
                raise ReducersFailed(f"{reducer.address} was {reducer.state.value} for too long")
            case State.SERVING:
                pass

    def _start(self, reducer: _Reducer, now: float) -> None:
        self.restarts += self._passed_s is not None
        reducer.process = start(reducer.host, reducer.port, log_level="error")
        assert reducer.process.stdout is not None
        self._selector.register(reducer.process.stdout, selectors.EVENT_READ, reducer)
        reducer.state, reducer.due_s = State.STARTING, now + START_TIMEOUT_S

    def _on_output(self, reducer: _Reducer, now: float) -> None:
        """Handle output. The first line says that the reducer serves; after it comes only the end of the file."""
        assert reducer.process is not None
        assert reducer.process.stdout is not None
        line = reducer.process.stdout.readline()
        if ready_address(line) is not None and reducer.state is State.STARTING:
            reducer.serves(now)
        elif reducer.state is State.ENDING and not line:
            self._reap(reducer)
            reducer.state, reducer.due_s = State.DOWN, now + self._restart_after_s
        else:
            code = reducer.process.poll()
            raise ReducersFailed(f"{reducer.address}, {reducer.state.value}, said {line!r}, exit code {code}")

    def _strike_what_is_due(self, now: float) -> None:
        if self._passed_s is None or self._over.is_set():
            return
        for colocated in self._colocated:
            colocated.look(now)
        serving = self._serving
        if serving:
            self._passed_s += now - self._looked_s
        self._looked_s = now
        if not self._planned:
            if len(serving) == self._count:
                self._over.set()
            return
        strike = self._planned[0]
        if self._passed_s < strike.at_s or not serving:
            return
        self._planned.pop(0)
        index = min(serving, key=lambda candidate: (candidate - strike.reducer) % self._count)
        struck = Struck(time.monotonic(), index, len(serving) - 1, index >= len(self._reducers))
        self.struck.append(struck)
        if struck.is_colocated:
            colocated = self._colocated[index - len(self._reducers)]
            colocated.struck = struck
            colocated.strike(self._signal)
            return
        reducer = self._reducers[index]
        assert reducer.process is not None
        reducer.struck = struck
        reducer.process.send_signal(self._signal)
        if self._signal is signal.SIGSTOP:
            reducer.state, reducer.due_s = State.STOPPED, now + self._stop_for_s
        else:
            reducer.state, reducer.due_s = State.ENDING, now + STOP_TIMEOUT_S

    @property
    def _count(self) -> int:
        return len(self._reducers) + len(self._colocated)

    @property
    def _serving(self) -> list[int]:
        serve = [reducer.state is State.SERVING for reducer in self._reducers]
        serve += [reducer.serves for reducer in self._colocated]
        return [index for index, one in enumerate(serve) if one]

    def _reap(self, reducer: _Reducer) -> None:
        process, reducer.process = reducer.process, None
        assert process is not None
        process.wait(STOP_TIMEOUT_S)
        assert process.stdout is not None
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.stdout)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _free_ports(count: int) -> list[int]:
    """Return ports on which no process listens."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server((LOOPBACK.address, port)):
            ports += [port] if port not in ports else []
    return ports

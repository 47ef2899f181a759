"""A reducer: the real engine with its codecs, behind a simulated listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from reduction.errors import MalformedFrame, ReductionError
from reduction.model import Place, ReducerFrame, Welcome
from simulation.network import End, Network, Process, number_of

from reducer.engine import TICK_S, Engine

#: How long a reducer takes to detect the end of a process, in seconds.
LOOK_S = 0.01


class _Sink:
    """Receives what the engine sends to one rank."""

    def __init__(self, end: End, siblings: tuple[int, ...]) -> None:
        self._end, self._siblings = end, siblings

    def on_frame(self, frame: ReducerFrame) -> None:
        self._end.send(replace(frame, siblings=self._siblings) if isinstance(frame, Welcome) else frame)

    def on_closed(self, error: ReductionError | None) -> None:
        self._end.close()


class SimReducer(Process):
    """One life of a reducer process.

    Args:
        network: its network.
        address: where it listens; the host is its name.
        life: number of this process among all that have listened there.
        memory_bytes: its limit.
        place: of its host.
        siblings: ports of the other processes of its server, if this one advertises them.
        record: receives what happens, for the checker.
    """

    def __init__(
        self,
        network: Network,
        address: str,
        life: int,
        memory_bytes: int,
        place: Place,
        siblings: tuple[int, ...],
        record: Callable[..., None],
    ) -> None:
        super().__init__(network, address.partition(":")[0])
        self.address, self.siblings = address, siblings
        self.name = f"{address}/{life}"
        self.engine = Engine(memory_limit_bytes=memory_bytes, place=place, clock=self._now)
        # The engine's own incarnation is random, but a seed must determine the run.
        self.engine.jobs.incarnation = number_of(self.name)
        self._sees_ends = Random(f"{self.name}/ends").random() < 0.7
        self._record = record
        network.listeners[address] = self, self._accept
        record("listens", reducer=self.name)
        self._tick()

    def _now(self) -> float:
        return self.network.clock.now

    def _accept(self, end: End) -> None:
        stream = self.engine.open(_Sink(end, self.siblings), end.peer.process.host)
        stream.pace(end.meter)

        def on_frame(frame: object) -> None:
            if isinstance(frame, MalformedFrame):  # bytes that no longer form a frame
                stream.reject(frame)
            else:
                stream.send(frame)

        end.on_frame = on_frame
        end.on_lost = lambda error: self.look_after(end, stream.close(str(error)))

    def look_after(self, end: End, on_ended: Callable[[], None] | None) -> None:
        """Probe the life port of the process at the other end, if this reducer could reach it."""
        there = end.peer.process
        if on_ended is not None and self._sees_ends:
            self.network.clock.at(self.network.clock.now + LOOK_S, partial(self._look, there, on_ended))

    def _look(self, there: Process, on_ended: Callable[[], None]) -> None:
        now = self.network.clock.now
        is_cut = max(
            self.network.cut_until(there.host, self.host), self.network.cut_until(self.host, there.host)
        )
        if not there.is_alive and is_cut < now:
            self.take(on_ended)

    def _tick(self) -> None:
        if self.is_alive:
            self.network.clock.at(self.network.clock.now + TICK_S, self._tick)
            self.take(self.engine.tick)

    def drain(self, limit_s: float) -> None:
        """Stop as on SIGTERM: once no job has this reducer in its configuration, or after a time limit."""
        self.take(self._drain)
        self._end_when_unused(self.network.clock.now + limit_s)

    def _drain(self) -> None:
        self.engine.drain()
        self._record("drains", reducer=self.name)

    def kill(self) -> None:
        """See `Process.kill`."""
        if self.is_alive:
            self._record("ended", reducer=self.name)
        super().kill()

    def _end_when_unused(self, due: float) -> None:
        if self.is_alive and (not self.engine.is_needed or self.network.clock.now >= due):
            self.kill()
        elif self.is_alive:
            self.network.clock.at(self.network.clock.now + TICK_S, partial(self._end_when_unused, due))

    def leftovers(self) -> list[str]:
        """Return the state that remains although no job is there."""
        engine, jobs = self.engine, self.engine.jobs
        counts = {
            "jobs": len(jobs.by_name),
            "streams": len(jobs.streams),
            "reserved bytes": jobs.memory.taken,
            "seats": jobs.seats.taken,
            "sinks": len(engine._sinks),
            "accumulators": len(engine._accumulators) + len(engine._firsts),
        }
        return [f"{self.address}: {count} {what}" for what, count in counts.items() if count]

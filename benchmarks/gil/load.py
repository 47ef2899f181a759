"""The workload of the GIL benchmark, run by every rank: all-reduces while the main thread computes in Python."""

from __future__ import annotations

import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.lab.ranks import Rank
from benchmarks.loads.all_reduce import AllReduce

#: Number of additions after which the main thread checks the collectives. They take about 50 us, a
#: hundredth of the interval after which a thread must hand over the GIL (sys.getswitchinterval).
ADDITIONS = 1000
#: Microseconds that a loop takes instead if the main thread sleeps.
LOOP_US = 50
#: The C library, called without giving the GIL away.
_WITH_GIL = ctypes.PyDLL(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The main thread of one rank in one turn."""

    seconds: float
    #: Bytes of all tensors that were reduced.
    tensor_bytes: int
    #: Number of loops of ADDITIONS.
    loops: int
    #: Seconds on a core.
    cpu_s: float
    #: Seconds in which it was ready to run, but had no core; 0 if the kernel does not tell.
    queued_s: float

    @property
    def blocked_s(self) -> float:
        """Seconds in which it neither ran nor was ready. A thread that computes then waits for the GIL."""
        return max(0.0, self.seconds - self.cpu_s - self.queued_s)


class BusyMain(AllReduce):
    """Up to `count` tensors of `numel` float32 each, at most `depth` of them in flight."""

    def __init__(
        self, rank: Rank, numel: int, count: int, depth: int, switch_s: float | None, is_asleep: bool
    ) -> None:
        super().__init__(rank, numel, count)
        self._all = self._tensors
        self._depth = depth
        self._keep_busy = _keep_gil if is_asleep else _compute
        if switch_s is not None:
            sys.setswitchinterval(switch_s)

    def take(self, count: int) -> None:
        """Set how many tensors a turn reduces."""
        self._tensors = self._all[:count]

    def idle(self, start_at: float, seconds: float) -> Turn:
        """Compute, with nothing in flight."""
        clock = _Clock(start_at)
        loops = self._keep_busy(lambda: time.perf_counter() >= start_at + seconds)
        return clock.turn(loops, 0)

    def fly(self, contender: str, spins: bool, start_at: float) -> Turn:
        """Reduce all tensors, and compute or wait until they are reduced."""
        issue = self._issuer(contender)
        queued = deque(self._tensors)
        in_flight: deque[torch.futures.Future[object]] = deque()
        loops = 0
        clock = _Clock(start_at)
        while queued or in_flight:
            while queued and len(in_flight) < self._depth:
                in_flight.append(issue(queued.popleft()))
            if spins:
                loops += self._keep_busy(in_flight[0].done)
            in_flight.popleft().wait()
        return clock.turn(loops, sum(tensor.nbytes for tensor in self._tensors))

    def _issuer(self, contender: str) -> Callable[[torch.Tensor], torch.futures.Future[object]]:
        if contender == "ring":
            return lambda tensor: dist.all_reduce(tensor, async_op=True).get_future()
        return self._rank.states[contender].all_reduce


def _keep_gil(is_over: Callable[[], bool]) -> int:
    """Sleep with the GIL until `is_over` returns true, as if another core computed; return the number of loops."""
    loops = 0
    while not is_over():
        _WITH_GIL.usleep(LOOP_US)
        loops += 1
    return loops


def _compute(is_over: Callable[[], bool]) -> int:
    """Add integers in the interpreter until `is_over` returns true, and return the number of loops."""
    loops = 0
    while not is_over():
        total = 0
        for number in range(ADDITIONS):
            total = (total + number) & 0xFFFF  # small integers need no allocation
        loops += 1
    return loops


class _Clock:
    """The clocks of the calling thread, read at `start_at`. It sleeps until then."""

    def __init__(self, start_at: float) -> None:
        time.sleep(max(0.0, start_at - time.perf_counter()))
        self._start = time.perf_counter(), time.thread_time(), _queued_s()

    def turn(self, loops: int, tensor_bytes: int) -> Turn:
        """Return the turn that ends now."""
        now = time.perf_counter(), time.thread_time(), _queued_s()
        seconds, cpu_s, queued_s = (end - start for end, start in zip(now, self._start, strict=True))
        return Turn(seconds=seconds, tensor_bytes=tensor_bytes, loops=loops, cpu_s=cpu_s, queued_s=queued_s)


def _queued_s() -> float:
    # The file has three numbers: ns on a core, ns in which the thread waited for a core, and time
    # slices (Linux, Documentation/scheduler/sched-stats.rst).
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0

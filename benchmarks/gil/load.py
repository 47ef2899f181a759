"""What every rank of `benchmarks.gil` runs: all-reduces while the main thread computes in Python."""

from __future__ import annotations

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

#: Additions between two looks at the collectives: about 50 us, a hundredth of the interval after which the
#: main thread must hand over the GIL to one that asks for it (sys.getswitchinterval).
ADDITIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the main thread of one rank did in one turn."""

    seconds: float
    #: That came back as sums.
    tensor_bytes: int
    #: ADDITIONS each.
    loops: int
    #: Running.
    cpu_s: float
    #: Ready to run, without a core; 0 if the kernel does not tell.
    queued_s: float

    @property
    def blocked_s(self) -> float:
        """Neither running nor ready: without the GIL, if it was not waiting by itself."""
        return max(0.0, self.seconds - self.cpu_s - self.queued_s)


class BusyMain(AllReduce):
    """Up to `count` tensors of `numel` float32 each; at most `depth` of them in flight."""

    def __init__(self, rank: Rank, numel: int, count: int, depth: int, switch_s: float | None) -> None:
        super().__init__(rank, numel, count)
        self._all = self._tensors
        self._depth = depth
        if switch_s is not None:
            sys.setswitchinterval(switch_s)

    def take(self, count: int) -> None:
        """Reduce so many tensors from now on."""
        self._tensors = self._all[:count]

    def idle(self, start_at: float, seconds: float) -> Turn:
        """Compute, with nothing in flight."""
        clock = _Clock(start_at)
        loops = _compute(lambda: time.perf_counter() >= start_at + seconds)
        return clock.turn(loops, 0)

    def fly(self, contender: str, spins: bool, start_at: float) -> Turn:
        """Reduce all tensors; meanwhile compute, or wait."""
        issue = self._issuer(contender)
        queued = deque(self._tensors)
        in_flight: deque[torch.futures.Future[object]] = deque()
        loops = 0
        clock = _Clock(start_at)
        while queued or in_flight:
            while queued and len(in_flight) < self._depth:
                in_flight.append(issue(queued.popleft()))
            if spins:
                loops += _compute(in_flight[0].done)
            in_flight.popleft().wait()
        return clock.turn(loops, sum(tensor.nbytes for tensor in self._tensors))

    def _issuer(self, contender: str) -> Callable[[torch.Tensor], torch.futures.Future[object]]:
        if contender == "ring":
            return lambda tensor: dist.all_reduce(tensor, async_op=True).get_future()
        return self._rank.states[contender].all_reduce


def _compute(is_over: Callable[[], bool]) -> int:
    """Add integers until it is over, without ever leaving the interpreter."""
    loops = 0
    while not is_over():
        total = 0
        for number in range(ADDITIONS):
            total = (total + number) & 0xFFFF  # stays a small integer: no allocation
        loops += 1
    return loops


class _Clock:
    """Of the calling thread, from `start_at` on; sleeps until then."""

    def __init__(self, start_at: float) -> None:
        time.sleep(max(0.0, start_at - time.perf_counter()))
        self._start = time.perf_counter(), time.thread_time(), _queued_s()

    def turn(self, loops: int, tensor_bytes: int) -> Turn:
        """Return what passed since then."""
        now = time.perf_counter(), time.thread_time(), _queued_s()
        seconds, cpu_s, queued_s = (end - start for end, start in zip(now, self._start, strict=True))
        return Turn(seconds=seconds, tensor_bytes=tensor_bytes, loops=loops, cpu_s=cpu_s, queued_s=queued_s)


def _queued_s() -> float:
    # Linux, Documentation/scheduler/sched-stats.rst: ns on a core, ns waiting for one, time slices.
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0

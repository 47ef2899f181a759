"""The workload of the soak, run by every rank: all-reduces of random sizes and dtypes, several in flight, all checked.

All ranks draw the same plan from one seed. Contributions are slices of random integers that differ
by rank, so the sum over all ranks is known, and exact in every dtype and any order of addition. The
tensors use memory that is allocated once, so this workload itself does not grow.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.distributed import ReduceOp

from benchmarks.lab.procfs import heap_bytes
from benchmarks.lab.ranks import Rank
from worker_plugin import ReductionState

#: Maximum number of workers whose sums are exact. Contributions are -4 to 3, and integers up to 256
#: are exact in bfloat16, which has the narrowest mantissa.
WORKERS_MAX = 64
#: Maximum number of collectives in flight.
IN_FLIGHT_MAX = 8
#: Timeout of a future in seconds. It is less than `ranks.CALL_TIMEOUT_S`, so that the error names
#: the collective.
TIMEOUT_S = 60.0

#: Chunks often end at multiples of this, so the plan has more such sizes than chance would give.
GRID_BYTES = 64 << 10

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DTYPES = (*_FLOATS, torch.int32, torch.int64)
#: Number of positions at which a contribution may begin. It is prime, so that no two chunks are
#: alike.
_STARTS = 1021


class Draw(NamedTuple):
    """One collective of the plan, which is the same on all ranks."""

    numel: int
    dtype: torch.dtype
    op: ReduceOp.RedOpType
    #: Position in the random integers at which the contribution begins.
    start: int
    #: Maximum number of other collectives in flight when this one is issued.
    others_max: int


class InFlight(NamedTuple):
    """A collective that was issued, and the memory of its tensor."""

    draw: Draw
    slot: torch.Tensor
    future: torch.futures.Future[torch.Tensor]


class Slice(NamedTuple):
    """The number of collectives of a slice, and the bytes of their tensors."""

    collectives: int
    tensor_bytes: int


class RandomAllReduces:
    """An endless plan that is executed in slices. Nothing is in flight between two slices."""

    def __init__(
        self, rank: Rank, reducers: Sequence[str], transport: str, seed: int, bytes_max: int
    ) -> None:
        self._rank, self._reducers, self._transport = rank, tuple(reducers), transport
        self._bytes_max = bytes_max
        self._plan = random.Random(seed)
        length = bytes_max // 2 + _STARTS
        generator = torch.Generator().manual_seed(seed)
        self._total = torch.zeros(length, dtype=torch.int16)
        for other in range(rank.world_size):
            numbers = torch.randint(-4, 4, (length,), generator=generator, dtype=torch.int8)
            self._total += numbers
            if other == rank.rank:
                self._own = numbers
        self._slots = [torch.empty(bytes_max, dtype=torch.uint8) for _ in range(IN_FLIGHT_MAX)]
        self._expected = torch.empty(bytes_max, dtype=torch.uint8)
        self._wide = torch.empty(2 * bytes_max, dtype=torch.uint8)
        self._state: ReductionState | None = None
        self._index = 0

    def heap_bytes(self, collects: bool) -> int | None:
        """Return the allocated bytes, after a garbage collection if `collects`; None without glibc."""
        if collects:
            gc.collect()
        return heap_bytes()

    def open(self, job: str) -> None:
        """Leave the job, and begin another one with a new communicator."""
        self.close()
        self._state = ReductionState(
            self._reducers, job=job, transport=self._transport, timeout_s=TIMEOUT_S, join_timeout_s=TIMEOUT_S
        )

    def close(self) -> None:
        """Leave the job."""
        if self._state is not None:
            self._state.close()

    def run(self, count: int) -> Slice:
        """Execute `count` collectives of the plan, and wait until all are done and checked."""
        assert self._state is not None
        in_flight: deque[InFlight] = deque()
        tensor_bytes = 0
        for _ in range(count):
            draw = self._draw()
            while len(in_flight) > draw.others_max:
                self._finish(in_flight.popleft())
            slot = self._slots.pop()
            tensor = _room(slot, draw.numel, draw.dtype)
            tensor.copy_(self._own[draw.start : draw.start + draw.numel])
            tensor_bytes += tensor.nbytes
            in_flight.append(InFlight(draw, slot, self._state.all_reduce(tensor, draw.op)))
        while in_flight:
            self._finish(in_flight.popleft())
        return Slice(count, tensor_bytes)

    def _draw(self) -> Draw:
        plan = self._plan
        dtype = plan.choice(_DTYPES)
        is_average = dtype in _FLOATS and plan.random() < 0.5
        return Draw(
            numel=self._draw_bytes() // dtype.itemsize,
            dtype=dtype,
            op=ReduceOp.AVG if is_average else ReduceOp.SUM,
            start=plan.randrange(_STARTS),
            others_max=plan.randrange(IN_FLIGHT_MAX),
        )

    def _draw_bytes(self) -> int:
        """Return a random size, log-uniform, and sometimes 0 or a multiple of GRID_BYTES."""
        plan = self._plan
        kind = plan.random()
        if kind < 0.05:
            return 0
        if kind < 0.15:
            return GRID_BYTES * plan.randint(0, self._bytes_max // GRID_BYTES)
        return int(self._bytes_max ** plan.random())

    def _finish(self, done: InFlight) -> None:
        draw, result = done.draw, done.future.wait()
        expected = self._sum(draw)
        if result.dtype != draw.dtype or not torch.equal(result, expected):
            raise AssertionError(
                f"rank {self._rank.rank}, collective {self._index} has {_wrong(result, expected)}; {draw}"
            )
        self._slots.append(done.slot)
        self._index += 1

    def _sum(self, draw: Draw) -> torch.Tensor:
        total = self._total[draw.start : draw.start + draw.numel]
        expected = _room(self._expected, draw.numel, draw.dtype)
        if draw.op == ReduceOp.SUM:
            return expected.copy_(total)
        # AVG divides in the dtype of the accumulator, and rounds once after that.
        wide = torch.float64 if draw.dtype == torch.float64 else torch.float32
        return expected.copy_(_room(self._wide, draw.numel, wide).copy_(total).div_(self._rank.world_size))


def _room(memory: torch.Tensor, numel: int, dtype: torch.dtype) -> torch.Tensor:
    return memory[: numel * dtype.itemsize].view(dtype)


def _wrong(result: torch.Tensor, expected: torch.Tensor) -> str:
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return f"{result.dtype} {tuple(result.shape)} in place of {expected.dtype} {tuple(expected.shape)}"
    where = (result != expected).nonzero().flatten()
    first = int(where[0])
    return (
        f"{len(where)} wrong elements of {len(result)}, the first is [{first}] = {result[first]}, expected "
        f"{expected[first]}"
    )

"""Collectives of one group in random order: every read has the same bits on Gloo and on this backend.

A program is a random list of steps, the same on all ranks, on views of one buffer. Its values are small integers, so a
sum has the same bits in every order of addition. There are two kinds of programs. In those that Gloo supports, no
memory is in flight twice at the same time, and Gloo runs the same steps. In the others all-reduces overlap with other
collectives in flight. Gloo runs such collectives in any order, so there it waits after each step.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from worker_plugin.process.torch_version import WITH_BACKENDS, is_too_old
from worker_plugin.process_group import ReductionOptions

#: Number of cells of the buffer, and possible numbers of elements per cell.
CELLS = 24
ELEMENTS = (1, 7, 500, 20_000)
STEPS = 14
DTYPES = (torch.float32, torch.int32, torch.int64, torch.float64)
#: The backend passes the last two to Gloo.
OPS = ("SUM", "MAX", "MIN", "BOR", "BXOR")
BITWISE = ("BOR", "BXOR")
#: Ended only by their own `wait`. Each wait for Gloo's reduce_scatter_tensor writes the result again (torch 2.13).
WAITED_FOR = ("point_to_point", "reduce_scatter")

Cells = tuple[int, int]


@dataclass
class Step:
    """An operation that all ranks perform."""

    kind: str
    cells: list[Cells] = field(default_factory=list)
    op: str = ""
    root: int = 0
    peer: int = 0
    #: Number of its handle; None if the call waits.
    handle: int | None = None
    way: str = ""


@dataclass
class Flying:
    """A collective with a handle, as the generator of programs sees it."""

    kind: str
    cells: list[Cells]
    #: Handles that are done once this one is.
    before: list[int] = field(default_factory=list)

    @property
    def is_by_reducers(self) -> bool:
        return self.kind in ("all_reduce", "coalesced")


COLLECTIVES: dict[str, Callable[[int], list[int]]] = {
    # The number of cells of each tensor.
    "all_reduce": lambda n: [3],
    "coalesced": lambda n: [2, 1],
    "bitwise": lambda n: [2],
    "broadcast": lambda n: [3],
    "reduce": lambda n: [2],
    "all_gather": lambda n: [n, 1],
    "all_gather_list": lambda n: [1] * (n + 1),
    "reduce_scatter": lambda n: [1, n],
    "all_to_all": lambda n: [n, n],
    "gather": lambda n: [1] * (n + 1),
    "scatter": lambda n: [1] * (n + 1),
    "point_to_point": lambda n: [2],
}
WEIGHTS = {"all_reduce": 8, "coalesced": 3}


class Program:
    """A random sequence of steps for `world_size` ranks."""

    def __init__(self, seed: int, world_size: int) -> None:
        self.random = random.Random(seed)
        self.world_size = world_size
        self.seed = seed
        self.dtype = self.random.choice(DTYPES)
        self.elements = self.random.choice(ELEMENTS)
        #: Whether collectives in flight may use the same memory.
        self.overlaps = self.random.random() < 0.5
        self.steps: list[Step] = []
        self.flying: dict[int, Flying] = {}
        self._handles = 0
        for _ in range(STEPS):
            self._add(self.random.random())
        if self.random.random() < 0.5:
            self._barrier(is_async=False)
        for handle in self.random.sample(list(self.flying), len(self.flying)):
            if handle in self.flying:  # a barrier may have ended it
                self._wait(handle)
        self._read()

    def _add(self, dice: float) -> None:
        if dice < 0.1:
            self._barrier(is_async=self.random.random() < 0.5)
        elif dice < 0.13:
            self.steps.append(Step("monitored_barrier"))
        elif dice < 0.3 and self.flying:
            self._wait(self.random.choice(list(self.flying)))
        elif dice < 0.45:
            self._read()
        else:
            self._collective()

    def _collective(self) -> None:
        kinds = [kind for kind in COLLECTIVES if kind != "bitwise" or not self.dtype.is_floating_point]
        kind = self.random.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds])[0]
        step = Step(kind, self._cells(COLLECTIVES[kind](self.world_size)))
        step.op = self.random.choice(BITWISE if kind == "bitwise" else OPS[:3])
        step.root, step.peer = self.random.sample(range(self.world_size), 2)
        flight = Flying(kind, step.cells)
        for handle, other in list(self.flying.items()):
            if handle in self.flying and self._clashes(flight, other):
                self._wait(handle)
        if self.random.random() < 0.75:
            step.handle = self._fly(flight)
        self.steps.append(step)

    def _clashes(self, one: Flying, other: Flying) -> bool:
        is_ordered = (
            self.overlaps
            and (one.is_by_reducers or other.is_by_reducers)
            and not {one.kind, other.kind} & {*WAITED_FOR}
        )
        return not is_ordered and any(a < d and c < b for a, b in one.cells for c, d in other.cells)

    def _cells(self, sizes: list[int]) -> list[Cells]:
        """Return disjoint ranges of cells with these sizes."""
        while True:
            starts = [self.random.randrange(CELLS - size + 1) for size in sizes]
            cells = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
            taken = [each for start, stop in cells for each in range(start, stop)]
            if len(taken) == len(set(taken)):
                return cells

    def _fly(self, flight: Flying) -> int:
        self._handles += 1
        self.flying[self._handles] = flight
        return self._handles

    def _wait(self, handle: int) -> None:
        flight = self.flying[handle]
        ways = ["wait"]
        if flight.kind not in WAITED_FOR:
            ways += ["get_future", "is_completed"]
        self.steps.append(Step("wait", handle=handle, way=self.random.choice(ways)))
        for done in (handle, *flight.before):
            self.flying.pop(done, None)

    def _barrier(self, is_async: bool) -> None:
        before = [handle for handle, one in self.flying.items() if one.kind not in WAITED_FOR]
        step = Step("barrier")
        if is_async:
            step.handle = self._fly(Flying("barrier", [], before))
        else:
            for handle in before:
                del self.flying[handle]
        self.steps.append(step)

    def _read(self) -> None:
        """Read all cells that are not used by a collective in flight."""
        busy = {each for one in self.flying.values() for a, b in one.cells for each in range(a, b)}
        self.steps.append(Step("read", [(each, each + 1) for each in range(CELLS) if each not in busy]))


class Run:
    """The execution of a program on a group by one rank."""

    def __init__(self, program: Program, group: Any, number: int, waits_always: bool) -> None:
        self.program, self.group, self.number = program, group, number
        self.waits_always = waits_always
        self.buffer = torch.empty(CELLS, program.elements, dtype=program.dtype)
        self.handles: dict[int, Any] = {}
        generator = torch.Generator().manual_seed(program.seed * 16 + number)
        self.buffer.copy_(torch.randint(0, 4, self.buffer.shape, generator=generator))

    def reads(self) -> Iterator[torch.Tensor]:
        """Run the program and yield what it reads."""
        for step in self.program.steps:
            tensors = [self.buffer[start:stop] for start, stop in step.cells]
            if step.kind == "read":
                yield torch.cat([*tensors, self.buffer[:0]]).clone()
            elif step.kind == "wait":
                self._wait(self.handles.pop(step.handle or 0), step.way)
            elif step.kind == "monitored_barrier":
                self.group.monitored_barrier()
            else:
                work = self._begin(step, tensors)
                if step.handle is not None and self.waits_always:
                    self._wait(work, "wait")
                    work = None  # a second wait for Gloo's send would wait for another send
                if step.handle is not None:
                    self.handles[step.handle] = work

    def _wait(self, work: Any, way: str) -> None:
        if work is None:  # already waited for, or this rank does not take part
            return
        if way == "get_future":
            work.get_future().wait()
        elif way == "is_completed" and is_too_old(torch.__version__, WITH_BACKENDS):
            while not work.is_completed():
                threading.Event().wait(0.0005)
        else:
            work.wait()

    def _begin(self, step: Step, tensors: list[torch.Tensor]) -> Any:
        group, number, op = self.group, self.number, getattr(dist.ReduceOp, step.op, None)
        how = {"group": group, "async_op": step.handle is not None}
        first, *rest = tensors or [self.buffer]
        match step.kind:
            case "all_reduce" | "bitwise":
                return dist.all_reduce(first, op, **how)
            case "coalesced":
                with dist._coalescing_manager(group=group, async_ops=step.handle is not None) as manager:
                    for tensor in tensors:
                        dist.all_reduce(tensor, op, group=group)
                return manager.works[0] if step.handle is not None else None
            case "broadcast":
                return dist.broadcast(first, step.root, **how)
            case "reduce":
                return dist.reduce(first, step.root, op, **how)
            case "all_gather":
                return dist.all_gather_into_tensor(first, rest[0], **how)
            case "all_gather_list":
                return dist.all_gather(rest, first, **how)
            case "reduce_scatter":
                return dist.reduce_scatter_tensor(first, rest[0], op, **how)
            case "all_to_all":
                return dist.all_to_all_single(first, rest[0], **how)
            case "gather":
                return dist.gather(first, rest if number == step.root else None, step.root, **how)
            case "scatter":
                return dist.scatter(first, rest if number == step.root else None, step.root, **how)
            case "barrier":
                return dist.barrier(**how)
        assert step.kind == "point_to_point"
        if number == step.root:
            return (dist.isend if step.handle else dist.send)(first, step.peer, group=group)
        if number == step.peer:
            work = (dist.irecv if step.handle else dist.recv)(first, step.root, group=group)
            return work if step.handle else None
        return None


def random_programs(rank: Any, reducers: list[str], seeds: range) -> tuple[int, list[str]]:
    """Return the number of compared reads, and the programs with different bits."""
    ours = dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers=reducers))
    theirs = dist.new_group(backend="gloo")
    reads, wrong = 0, []
    for seed in seeds:
        program = Program(seed, rank.world_size)
        expected = list(Run(program, theirs, rank.number, program.overlaps).reads())
        found = list(Run(program, ours, rank.number, False).reads())
        reads += len(found)
        if not all(map(torch.equal, found, expected)):
            wrong.append(f"seed {seed}: {program.dtype} {program.elements} {program.steps}")
    dist.destroy_process_group(ours)
    dist.destroy_process_group(theirs)
    return reads, wrong


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 250), pytest.param(1_000_000, 10_000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_random_sequences_read_the_same_as_on_gloo(
    ranks: Any, reducers: Callable[[int], list[str]], world_size: int, first: int, count: int
) -> None:
    seeds = range(first + world_size * count, first + world_size * count + count // 2)
    call = ranks.begin(world_size, random_programs, reducers(2), seeds, timeout_s=60.0 + count / 4)
    for reads, wrong in call.answers():
        assert not wrong, f"{len(wrong)} of {count // 2}, the first: {wrong[0]}"
        assert reads >= count


def group_of(rank: Any, reducers: list[str]) -> Any:
    group = dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers=reducers))
    dist.all_reduce(torch.ones(1), group=group)
    return group


def something_between(rank: Any, reducers: list[str]) -> list[float]:
    """Delay rank 1's all-reduce until rank 0 has called the barrier."""
    group = group_of(rank, reducers)
    tensor = torch.ones(3)
    if rank.number == 1:
        dist.recv(torch.empty(1), 0, group=group)
    dist.all_reduce(tensor, group=group, async_op=True)
    barrier = dist.barrier(group=group, async_op=True)
    if rank.number == 0:
        dist.send(torch.ones(1), 1, group=group)
    barrier.wait()
    found = tensor.tolist()
    dist.destroy_process_group(group)
    return found


def test_an_asynchronous_barrier_returns_at_once(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    assert ranks.run(2, something_between, reducers(1)) == [[2.0] * 3] * 2


def destroyed(rank: Any, reducers: list[str]) -> list[float]:
    group = group_of(rank, reducers)
    tensor = torch.ones(3)
    if rank.number == 1:
        dist.recv(torch.empty(1), 0)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    if rank.number == 0:
        dist.send(torch.ones(1), 1)
    dist.destroy_process_group(group)
    found = tensor.tolist()
    work.wait()
    return found


def test_destroying_a_group_waits_for_its_all_reduces(
    ranks: Any, reducers: Callable[[int], list[str]]
) -> None:
    assert ranks.run(2, destroyed, reducers(1)) == [[2.0] * 3] * 2


def aborted(rank: Any, reducers: list[str]) -> list[str]:
    """Abort while a barrier waits for an all-reduce that rank 1 never issues."""
    group = group_of(rank, reducers)
    errors: list[Exception | None] = []
    if rank.number == 0:
        dist.all_reduce(torch.ones(3), group=group, async_op=True)
        barrier = dist.barrier(group=group, async_op=True)
        group.abort()
        errors = [rank.error_of(barrier.wait)]
        errors.append(rank.error_of(lambda: dist.broadcast(torch.ones(1), 0, group=group)))
    dist.barrier()
    dist.destroy_process_group(group)
    return [type(error).__name__ for error in errors]


def test_an_abort_ends_a_barrier_that_waits(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    assert ranks.run(2, aborted, reducers(1)) == [["ClosedError", "ClosedError"], []]

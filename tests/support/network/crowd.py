"""Many ranks of many jobs in one process. Each connection carries a stream of every job. They push and compare."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import numpy as np
from reduction import layout
from reduction.client.grpc_client import GrpcEndpoint
from reduction.client.tcp_client import TcpEndpoint
from reduction.errors import ReducerUnavailable
from reduction.model import (
    Abort,
    Collective,
    Configuration,
    DType,
    Goodbye,
    Hello,
    Join,
    Member,
    Push,
    ReduceOp,
    Result,
    Start,
    Welcome,
)

CHUNK = 64 << 10
CHUNKS = 4
#: Bytes that every rank pushes without waiting.
CREDIT = CHUNK * CHUNKS
NUMEL = CREDIT // 4
#: A collective so large that its chunks have full size. Only the first chunks are pushed.
COLLECTIVE = Collective(ReduceOp.SUM, DType.FLOAT32, layout.SMALL_BYTES // 4, 7)


def values(job: int, rank: int, seq: int) -> np.ndarray:
    """Return a contribution whose sum depends on the order of addition."""
    generator = np.random.default_rng((job, rank, seq))
    return (generator.standard_normal(NUMEL) * 10.0 ** (rank % 3)).astype(np.float32)


def expected(job: int, world_size: int, seq: int) -> np.ndarray:
    """Return the sum in rank order."""
    total = values(job, 0, seq)
    for rank in range(1, world_size):
        total += values(job, rank, seq)
    return total


class CrowdMember:
    """One rank of one job: the sink of its stream."""

    def __init__(self, name: str, job: int, rank: int, world_size: int, endpoint) -> None:
        self.job = job
        self.rank = rank
        self.frames: asyncio.Queue = asyncio.Queue()
        self.closed = asyncio.Event()
        self._instance = job.to_bytes(16)
        self._endpoint = endpoint
        instance = b"" if rank else self._instance
        self._join = Join(f"{name}-{job}", instance, rank, world_size, os.urandom(16), "crowd", 0, CREDIT)
        self._dial()

    def _dial(self) -> None:
        self.closed.clear()
        self.stream = self._endpoint.open(self)
        self.stream.send(self._join)

    async def answer(self) -> Welcome | Abort:
        """Return the reducer's answer. If a connection took too long, dial again, as a worker does."""
        frame = await self.frames.get()
        while isinstance(frame, ReducerUnavailable):
            self._dial()
            frame = await self.frames.get()
        assert isinstance(frame, Welcome | Abort), (self.job, self.rank, frame)
        return frame

    def on_frame(self, frame) -> None:
        if isinstance(frame, Welcome | Abort | Start | Result):
            self.frames.put_nowait(frame)

    def on_closed(self, error) -> None:
        self.frames.put_nowait(error)
        self.closed.set()

    def destination(self, epoch, seq, chunk, nbytes):
        return None

    def hello(self, incarnation: bytes) -> None:
        configuration = Configuration(self._instance, 1, CHUNK, (Member("reducer:1", incarnation),))
        self.stream.send(Hello(configuration, 0))

    def push(self, seq: int) -> None:
        data = memoryview(values(self.job, self.rank, seq)).cast("B")
        for chunk in range(CHUNKS):
            start, stop = layout.chunk_range(chunk, COLLECTIVE.numel, 4, CHUNK)
            self.stream.send(Push(1, seq, chunk, COLLECTIVE, 0, data[start:stop]))

    async def next(self, kind: type):
        frame = await self.frames.get()
        assert isinstance(frame, kind), (self.job, self.rank, frame)
        return frame

    async def sum(self, seq: int) -> np.ndarray:
        """Return the whole result of a collective."""
        total = np.empty(NUMEL, np.float32)
        for chunk in range(CHUNKS):
            frame = await self.next(Result)
            assert (frame.seq, frame.chunk) == (seq, chunk)
            start, stop = layout.chunk_range(chunk, COLLECTIVE.numel, 4, CHUNK)
            total[start // 4 : stop // 4] = np.frombuffer(frame.payload, np.float32)
        return total


class Crowd:
    """`jobs` jobs of `world_size` ranks each over `world_size` connections."""

    def __init__(self, address: str, plane: str, name: str, jobs: int, world_size: int) -> None:
        self._world_size = world_size
        if plane == "tcp":
            self._endpoints = [TcpEndpoint(address, is_required=True) for _ in range(world_size)]
        else:
            self._endpoints = [GrpcEndpoint(address) for _ in range(world_size)]
        self._name = name
        self._jobs = range(jobs)
        self._running: dict[int, list[CrowdMember]] = {}
        self._members: list[CrowdMember] = []

    async def join(self) -> tuple[list[int], Counter]:
        """Join with all jobs concurrently; return the running jobs, and what the ranks of the others received."""
        refusals: Counter = Counter()
        everybody = {
            job: [
                CrowdMember(self._name, job, rank, self._world_size, endpoint)
                for rank, endpoint in enumerate(self._endpoints)
            ]
            for job in self._jobs
        }
        for job, members in everybody.items():
            self._members += members
            answers = [await member.answer() for member in members]
            aborts = [answer for answer in answers if isinstance(answer, Abort)]
            refusals.update((job, abort.code, abort.message) for abort in aborts)
            if not aborts:
                self._running[job] = members
                for member in members:
                    member.hello(answers[0].incarnation)
        for members in self._running.values():
            for member in members:
                await member.next(Start)
        return list(self._running), refusals

    def push(self, seq: int, *, first: int, last: int) -> None:
        """Have these ranks of every job push as much as their credit allows."""
        for members in self._running.values():
            for member in members[first:last]:
                member.push(seq)

    async def check(self, seq: int) -> None:
        """Wait for all results, and compare every rank's bit by bit."""
        for job, members in self._running.items():
            right = expected(job, self._world_size, seq)
            for member in members:
                assert np.array_equal(await member.sum(seq), right), (job, member.rank, seq)

    async def leave(self) -> None:
        """Send Goodbye and close everything."""
        for members in self._running.values():
            for member in members:
                member.stream.send(Goodbye(0, 0))
        for member in self._members:
            member.stream.close()
        for member in self._members:
            await member.closed.wait()
        for endpoint in self._endpoints:
            await endpoint.close()

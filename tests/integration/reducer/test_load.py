"""One client process with hundreds of streams against a reducer with little memory."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest
from reduction.errors import ResourceExhausted
from reduction.process import descriptors
from support.network import crowd

from reducer.core.reservations import reservation
from reducer.observe.status import StatusAccess, fetch
from reducer.transports.grpc_server import Limits
from worker_plugin.process.io_loop import io_loop

JOBS, CONNECTIONS, ROUNDS = 8, 64, 3
ADMITTED = 5
RESERVED = reservation(CONNECTIONS, crowd.CREDIT)
LIMIT = ADMITTED * RESERVED + RESERVED // 2
#: Memory that the other ranks' pushes of one round occupy while rank 0 of every job is late.
KEPT = ADMITTED * (CONNECTIONS - 1) * crowd.CREDIT
#: Memory allowed per stream in addition to its job's reservation. About 30 KiB were measured.
STREAM_BYTES = 64 << 10


def rss_bytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) << 10


def test_a_reducer_raises_its_descriptor_limit(serve):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reducer = serve(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)))
    wanted = 2 * Limits().connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    assert resource.prlimit(reducer.pid, resource.RLIMIT_NOFILE) == (allowed, hard)


def run_multitude(rank, address, plane, job, count):
    """Join as all ranks of one job at the same time, and leave once it has started."""

    async def main():
        crowded = crowd.Crowd(address, plane, job, 1, count)
        answers = await crowded.join()
        await crowded.leave()
        return answers

    assert descriptors.allow(3 * count) > 2 * count
    return asyncio.run_coroutine_threadsafe(main(), io_loop()).result()


@pytest.mark.parametrize("count", [256, pytest.param(1024, marks=pytest.mark.full)])
def test_all_ranks_of_a_large_job_join_at_once_and_are_admitted(ranks, serve, plane, job, count):
    """Refused ranks do not retry here, although a worker would."""
    reducer = serve("--memory-limit", str(1 << 40), "--log-level", "warning")
    [(running, refusals)] = ranks.run(1, run_multitude, reducer.address, plane, job, count, group=False)
    assert (running, refusals) == ([0], {})


def run_crowd(rank, address, plane, job):
    """Join, then push in rounds in which rank 0 of every job waits for the test."""

    async def main():
        crowded = crowd.Crowd(address, plane, job, JOBS, CONNECTIONS)
        rank.tell(await crowded.join())
        for seq in range(ROUNDS):
            crowded.push(seq, first=1, last=CONNECTIONS)
            await asyncio.to_thread(rank.hear)
            crowded.push(seq, first=0, last=1)
            await crowded.check(seq)
            rank.tell("right")
        await crowded.leave()

    asyncio.run_coroutine_threadsafe(main(), io_loop()).result()


def test_a_crowd_gets_typed_refusals_correct_sums_and_bounded_memory(ranks, serve, plane, job, until):
    reducer = serve("--memory-limit", str(LIMIT))
    idle = rss_bytes(reducer.pid)

    def status():
        return fetch(reducer.address, 20.0, StatusAccess())

    call = ranks.begin(1, run_crowd, reducer.address, plane, job, group=False)
    running, refusals = call.hear(0)
    assert len(running) == ADMITTED
    assert sum(refusals.values()) == (JOBS - ADMITTED) * CONNECTIONS
    assert {refused for refused, _, _ in refusals}.isdisjoint(running)
    for refused, code, message in refusals:
        assert code == ResourceExhausted.code
        assert message.startswith(f"job '{job}-{refused}' needs {RESERVED} bytes")
        assert f"{ADMITTED * RESERVED} of {LIMIT} are taken, and it may have" in message
    most = 0
    for seq in range(ROUNDS):
        before = seq * ADMITTED * CONNECTIONS * crowd.CREDIT
        until(
            lambda before=before: sum(each.received_bytes for each in status().jobs) == before + KEPT,
            "all pushes but rank 0's",
            60.0,
        )
        most = max(most, rss_bytes(reducer.pid))
        call.tell(0, "go on")
        assert call.hear(0) == "right"
        most = max(most, rss_bytes(reducer.pid))
    assert idle + KEPT <= most <= idle + LIMIT + JOBS * CONNECTIONS * STREAM_BYTES
    call.answers()
    until(lambda: not status().jobs, "the end of all jobs")
    assert status().memory_reserved_bytes == 0

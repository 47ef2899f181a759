"""Faults of a stream end only that stream, and faults of a job end only that job."""

import numpy as np
import pytest
from conformance.places import CHUNK, L, P, beside_a_deaf_rank
from reduction import layout
from reduction.errors import (
    CollectiveMismatch,
    DataCorrupted,
    MalformedFrame,
    OutOfOrder,
    PeerLeft,
    WorkerLost,
)
from reduction.model import Abort, Collective, DType, Goodbye, ReduceOp, Result
from reduction.wire import checksum


async def works(workers, seq):
    """Run one collective, to show that a job still works."""
    for worker in workers:
        worker.push(np.float32([1, 2]), seq)
    for worker in workers:
        assert (await worker.result(seq)).tolist() == [len(workers), 2 * len(workers)]


async def aborted(worker, error_class):
    """Wait for the Abort and the end that follows; return the message."""
    abort = await worker.next(Abort)
    assert abort.code == error_class.code
    assert await worker.sink.closed is not None
    return abort.message


@pytest.mark.parametrize("elements", [0, 2, 4, 256])
async def test_a_chunk_of_the_wrong_size(place, elements):
    others = await place.running(job="others")
    zero, one = await place.running()
    one.push(np.zeros(elements, np.float32), numel=3)
    for worker in (zero, one):
        message = await aborted(worker, MalformedFrame)
        assert message.startswith(f"rank 1 (host1) pushed {4 * elements} bytes as chunk 0 of collective 0")
    await works(others, 0)


async def test_a_chunk_that_does_not_exist(place):
    zero, one = await place.running()
    one.push(np.zeros(3, np.float32), chunk=1)
    for worker in (zero, one):
        assert "rank 1 (host1) pushed chunk 1" in await aborted(worker, MalformedFrame)


async def test_pushing_more_than_the_credit(place):
    zero, one = await place.running(credit=4 * CHUNK)
    for seq in range(5):
        one.push(np.zeros(256, np.float32), seq)
    for worker in (zero, one):
        assert "its credit is 4096" in await aborted(worker, OutOfOrder)


async def test_the_same_push_twice(place):
    zero, one = await place.running()
    for _ in range(2):
        one.push(np.zeros(256, np.float32))
    for worker in (zero, one):
        assert "twice" in await aborted(worker, OutOfOrder)


async def test_a_push_before_start(place):
    worker = place.worker()
    await worker.welcome()
    worker.push(np.zeros(3, np.float32))
    assert "not started" in await aborted(worker, OutOfOrder)


@pytest.mark.parametrize(
    "other",
    [
        {"values": np.zeros(4, np.float32)},
        {"values": np.zeros(0, np.float32)},
        {"values": np.zeros(3, np.float64), "dtype": DType.FLOAT64},
        {"values": np.zeros(3, np.int32), "dtype": DType.INT32},
        {"values": np.zeros(3, np.float32), "op": ReduceOp.AVG},
    ],
    ids=["shape", "empty", "dtype", "integer", "op"],
)
async def test_ranks_that_disagree_all_fail_and_the_error_names_them(place, other):
    others = await place.running(job="others")
    workers = await place.running(3)
    workers[0].push(np.zeros(3, np.float32))
    workers[2].push(**other)
    for worker in workers:
        message = await aborted(worker, CollectiveMismatch)
        assert "rank 0 issued" in message
        assert "rank 2 issued" in message
    await works(others, 0)


async def test_an_abort_reaches_every_rank_with_its_cause(place):
    others = await place.running(job="others")
    workers = await place.running(3)
    workers[1].send(Abort(WorkerLost.code, "rank 1 (host1): rank 2 is gone"))
    for worker in workers:
        assert await aborted(worker, WorkerLost) == "rank 1 (host1): rank 2 is gone"
    await works(others, 0)


async def test_a_name_is_free_after_a_failure_but_the_failed_life_stays_dead(place):
    zero, one = await place.running()
    zero.send(Abort(WorkerLost.code, "over"))
    await aborted(one, WorkerLost)
    straggler = place.worker(1)
    straggler.join()
    assert await aborted(straggler, WorkerLost) == "over"
    await works(await place.running(life="again"), 0)


async def test_goodbye_while_another_rank_waits_names_who_left(place):
    workers = await place.running(3)
    workers[0].push(np.zeros(3, np.float32))
    workers[1].send(Goodbye(0, 0))
    for worker in (workers[0], workers[2]):
        assert await aborted(worker, PeerLeft) == (
            "rank 1 (host1) closed, but rank 0 still issued collective 0: see rank 1's log"
        )
    await workers[1].sink.closed


async def test_a_crash_frees_the_name_and_the_memory(place):
    workers = await place.running()
    workers[0].push(np.zeros(3, np.float32))
    for worker in workers:
        worker.stream.close()
    for worker in workers:
        assert await worker.sink.closed is None
    await works(await place.running(life="again"), 0)
    assert place.engine.status().memory_reserved_bytes == 2 * 2 * 64 * CHUNK + (1 << 20)


async def test_close_is_idempotent_and_later_frames_are_dropped(place):
    others = await place.running(job="others")
    zero, one = await place.running()
    one.stream.close()
    one.stream.close()
    one.push(np.zeros(3, np.float32))
    await zero.peers(P, L)
    assert await one.sink.closed is None
    await works(others, 0)


async def test_a_rank_that_does_not_read_does_not_stall_others(place):
    # 8 MiB of results wait for the deaf rank, more than the buffers on the way can hold.
    mib = 1 << 20
    reader, deaf = await beside_a_deaf_rank(place, 2 * mib)
    others = await place.running(job="others")
    for seq in range(8):
        for worker in (reader, deaf):
            worker.push(np.ones(mib // 4, np.float32), seq, numel=mib)
        assert (await reader.result(seq)).sum() == mib // 2
        await works(others, seq)


def crc_of(values, seq=0):
    collective = Collective(ReduceOp.SUM, DType.FLOAT32, len(values), layout.fingerprint([len(values)]))
    return checksum.of_push(1, seq, 0, 0, collective, memoryview(values).cast("B"))


async def test_results_have_checksums_if_configured(place):
    workers = await place.running(checksums=True)
    values = np.float32([1, 2])
    for worker in workers:
        worker.push(values, crc32c=crc_of(values))
    for worker in workers:
        result = await worker.next(Result)
        assert result.crc32c == checksum.of_result(1, 0, 0, 0, result.payload)


@pytest.mark.parametrize("damage", [1, None])
async def test_a_damaged_push_ends_its_stream_and_not_the_job(place, damage):
    zero, one = await place.running(checksums=True)
    values = np.float32([1, 2])
    zero.push(values, crc32c=crc_of(values))
    one.push(values, crc32c=damage and crc_of(values) ^ damage)
    assert "arrived damaged" in await aborted(one, DataCorrupted)
    await zero.peers(P, L)


async def test_without_checksums_results_have_none(place):
    workers = await place.running()
    for worker in workers:
        worker.push(np.float32([1, 2]))
    assert (await workers[0].next(Result)).crc32c is None

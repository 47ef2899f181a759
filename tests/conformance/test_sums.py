"""Collectives through an endpoint: exact bits, results in the order of the pushes, and isolated jobs."""

import numpy as np
import pytest
from conformance.places import G, L, P, received_bytes
from reduction.model import Ack, Configure, DType, Goodbye, Minimum, ReduceOp, Start


def ramp(rank, count=256):
    """Return a contribution whose sum shows which ranks are in it."""
    return np.arange(count, dtype=np.float32) + np.float32(1000 * 10**rank)


async def test_two_ranks_sum(place):
    zero, one = await place.running()
    zero.push(ramp(0))
    one.push(ramp(1))
    expected = ramp(0) + ramp(1)
    for worker in (zero, one):
        assert (await worker.result()).tobytes() == expected.tobytes()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_the_bits_do_not_depend_on_the_order_of_arrival(place, order):
    workers = await place.running(3)
    values = [np.float32([2.0**24]), np.float32([1.0]), np.float32([1.0])]
    for count, rank in enumerate(order, 1):
        workers[rank].push(values[rank])
        await place.until(lambda arrived=4 * count: received_bytes(place) == arrived)
    results = [await worker.result() for worker in workers]
    assert [result.tolist() for result in results] == [[2.0**24]] * 3


async def test_avg_of_float16_is_divided_wide_and_rounded_once(place):
    workers = await place.running(3)
    values = [np.float16([60000, 1]), np.float16([60000, 2]), np.float16([60000, 5])]
    for worker, value in zip(workers, values, strict=True):
        worker.push(value, op=ReduceOp.AVG, dtype=DType.FLOAT16)
    wide = sum(value.astype(np.float32) for value in values) / np.float32(3)
    assert (await workers[1].result(dtype=np.float16)).tolist() == wide.astype(np.float16).tolist()


async def test_bfloat16(place):
    zero, one = await place.running()
    one_point_five, two = np.uint16([0x3FC0]), np.uint16([0x4000])
    zero.push(one_point_five, dtype=DType.BFLOAT16)
    one.push(two, dtype=DType.BFLOAT16)
    assert (await zero.result(dtype=np.uint16)).tolist() == [0x4060]  # 3.5


async def test_integers_wrap(place):
    zero, one = await place.running()
    zero.push(np.int64([2**63 - 1, 5]), dtype=DType.INT64)
    one.push(np.int64([1, -7]), dtype=DType.INT64)
    assert (await one.result(dtype=np.int64)).tolist() == [-(2**63), -2]


async def test_world_size_1(place):
    (alone,) = await place.running(1)
    alone.push(ramp(0))
    assert (await alone.result()).tobytes() == ramp(0).tobytes()


async def test_results_come_in_the_order_of_the_pushes(place):
    zero, one = await place.running()
    order = [(seq, chunk) for seq in range(4) for chunk in range(3)]
    for seq, chunk in order:
        zero.push(ramp(0) + seq, seq, chunk=chunk, numel=768)
    for seq, chunk in order:
        one.push(ramp(1) - chunk, seq, chunk=chunk, numel=768)
    for worker in (zero, one):
        for seq, chunk in order:
            expected = (ramp(0) + seq) + (ramp(1) - chunk)
            assert (await worker.result(seq, chunk)).tobytes() == expected.tobytes()


async def test_an_empty_collective_is_answered_between_others(place):
    zero, one = await place.running()
    for worker in (zero, one):
        worker.push(ramp(0), 0)
        worker.push(np.float32([]), 1)
        worker.push(ramp(1), 2)
    assert (await one.result(0)).tobytes() == (ramp(0) * 2).tobytes()
    assert (await one.result(1)).size == 0
    assert (await one.result(2)).tobytes() == (ramp(1) * 2).tobytes()


async def test_a_contribution_may_be_changed_once_its_result_has_arrived(place):
    zero, one = await place.running()
    mine = ramp(0)
    zero.push(mine, 0)
    one.push(ramp(1), 0)
    await zero.result(0)
    mine[:] = 7
    assert (await one.result(0)).tobytes() == (ramp(0) + ramp(1)).tobytes()


async def test_two_jobs_of_the_same_shape_do_not_interfere(place):
    left = await place.running(job="left")
    right = await place.running(job="right")
    left[0].push(ramp(0))
    right[1].push(ramp(1))
    right[0].push(ramp(2))
    left[1].push(ramp(3))
    for worker in left:
        assert (await worker.result()).tobytes() == (ramp(0) + ramp(3)).tobytes()
    for worker in right:
        assert (await worker.result()).tobytes() == (ramp(2) + ramp(1)).tobytes()


async def test_a_new_epoch_drops_earlier_pushes_and_sums_again(place):
    zero, one = await place.running()
    zero.push(ramp(0))
    one.stream.close()
    await zero.peers(P, L)
    one = place.worker(1)
    await one.welcome()
    zero.hello(2)
    one.hello(2)
    await zero.next(Start)
    assert await one.next(Start) == Start(2, 0)
    zero.push(ramp(1), epoch=2)
    one.push(ramp(2), epoch=2)
    for worker in (zero, one):
        assert (await worker.result()).tobytes() == (ramp(1) + ramp(2)).tobytes()


async def test_a_push_of_the_old_epoch_is_ignored(place):
    zero, one = await place.running()
    zero.hello(2)
    assert (await one.next(Configure)).configuration.epoch == 2
    one.push(ramp(9), epoch=1)
    one.hello(2)
    await one.next(Start)
    zero.push(ramp(1), epoch=2)
    one.push(ramp(2), epoch=2)
    assert (await one.result()).tobytes() == (ramp(1) + ramp(2)).tobytes()


async def test_the_minimum_is_sent_when_no_result_carries_it(place):
    zero, one = await place.running()
    zero.send(Ack(3))
    one.push(ramp(0), held=2)
    zero.push(ramp(0))
    await one.result()
    one.send(Ack(3))
    await place.until(lambda: place.engine.jobs.by_name["job", ""].minimum == 3)
    place.pass_time(0.06)
    assert await zero.next(Minimum) == Minimum(3)
    assert await one.next(Minimum) == Minimum(3)


async def test_goodbye_ends_the_stream_cleanly_and_others_are_notified(place):
    zero, one = await place.running()
    one.send(Goodbye(0, 0))
    assert await one.sink.closed is None
    await zero.peers(P, G)
    zero.send(Goodbye(0, 0))
    assert await zero.sink.closed is None
    again = await place.running(life="again")
    for worker in again:
        worker.push(ramp(1))
    assert (await again[0].result()).tobytes() == (ramp(1) * 2).tobytes()

"""Limits of a server: a request beyond a limit is refused with the limit's value, and the others are served."""

import asyncio

import grpc
import numpy as np
import pytest
from conformance.places import GrpcPlace, TcpPlace
from grpc_health.v1 import health_pb2, health_pb2_grpc
from reduction import wire
from reduction.client.grpc_client import METHOD
from reduction.errors import ReducerUnavailable, ResourceExhausted
from reduction.limits import STREAMS_PER_CONNECTION_MAX
from reduction.model import Abort, Join, Welcome
from support.network.channels import NO_PROXY

from reducer.transports.grpc_server import Limits


@pytest.fixture(params=[GrpcPlace, TcpPlace], ids=["grpc", "tcp"])
def plane(request):
    return request.param


def limited(plane, **limits):
    place = plane()
    place.limits = Limits(**limits)
    return place


@pytest.fixture
def three_streams(plane):
    return limited(plane, streams=3)


@pytest.fixture
def two_strangers(plane):
    return limited(plane, strangers=2)


@pytest.fixture
def no_patience(plane):
    return limited(plane, strangers=2, turn_s=0.1, hurry_s=600.0)


@pytest.fixture
def no_room(plane):
    return limited(plane, strangers=1, waiting=1, hurry_s=600.0)


@pytest.fixture
def no_time(plane):
    return limited(plane, strangers=1, join_s=0.5, hurry_s=0.5)


@pytest.fixture
def in_a_hurry(plane):
    return limited(plane, strangers=2, join_s=600.0, hurry_s=0.2)


@pytest.fixture
def five_connections(plane):
    return limited(plane, connections=5)


async def works(workers, seq=0):
    for worker in workers:
        worker.push(np.float32([1, 2]), seq)
    for worker in workers:
        assert (await worker.result(seq)).tolist() == [len(workers), 2 * len(workers)]


async def refusal(worker):
    """Join, and wait for the Abort that ends the worker's stream; return its message."""
    worker.join()
    abort = await worker.next(Abort)
    assert abort.code == ResourceExhausted.code
    await worker.sink.closed
    return abort.message


async def silent(place, count):
    """Return calls that have sent nothing and whose Join the server is waiting for."""
    calls = [place.call() for _ in range(count)]
    while place.server._turns.free > place.limits.strangers - count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return calls


async def late(place, job="late"):
    """Return a rank that is waiting for its turn."""
    before = place.server._turns._waiting
    worker = place.worker(0, job=job, world_size=1)
    worker.join()
    while place.server._turns._waiting == before:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return worker


async def lost_turn(call):
    """Return why a call that never became a stream ended. It has no Abort, so a worker treats it as a lost stream."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return caught.value.details()


async def test_one_stream_too_many(three_streams):
    members = await three_streams.running(world_size=3)
    one = three_streams.worker(0, job="late", world_size=1)
    assert await refusal(one) == "3 streams are open, which is this reducer's limit: try another, or later"
    await works(members)
    members[2].stream.close()
    await members[2].sink.closed
    await three_streams.worker(0, job="late", world_size=1).welcome()


async def test_simultaneous_joins_use_all_available_streams(three_streams):
    async def join(number):
        call = three_streams.call()
        frame = Join(f"job-{number}", bytes(16), 0, 1, bytes(16), "", 0, 4096)
        await call.write(wire.worker_frame_to_wire(frame))
        return call, wire.reducer_frame_from_wire(await call.read())

    answers = await asyncio.gather(*(join(number) for number in range(40)))
    assert [type(answer) for _, answer in answers].count(Welcome) == 3
    assert [type(answer) for _, answer in answers].count(Abort) == 37
    for call, _ in answers:
        call.cancel()


async def test_a_call_after_too_many_strangers_waits_for_its_turn(two_strangers):
    calls = await silent(two_strangers, 2)
    one = await late(two_strangers)
    assert not two_strangers.engine.jobs.by_name
    calls[0].cancel()
    await one.expect(Welcome)
    one.stream.close()
    await works(await two_strangers.running(world_size=1, job="other"))


async def test_a_worker_that_gets_no_turn_can_dial_again(no_patience):
    members = await no_patience.running(world_size=2)
    calls = await silent(no_patience, 2)
    one = await late(no_patience)
    error = await one.sink.closed
    assert type(error) is ReducerUnavailable, "which is dialled again"
    assert str(error).endswith("RESOURCE_EXHAUSTED: others had all turns for 0.1 s: try again")
    assert one.sink.frames.empty()
    await works(members)
    for call in calls:
        call.cancel()


async def test_the_number_of_waiting_calls_is_limited(no_room):
    [call] = await silent(no_room, 1)
    first = await late(no_room)
    second = no_room.worker(0, job="second", world_size=1)
    second.join()
    error = await second.sink.closed
    assert type(error) is ReducerUnavailable
    limit = "RESOURCE_EXHAUSTED: 1 calls wait for their turn, which is this reducer's limit: try again"
    assert str(error).endswith(limit)
    call.cancel()
    await first.expect(Welcome)


async def test_a_call_without_a_join_loses_its_turn(no_time):
    [call] = await silent(no_time, 1)
    one = no_time.worker(0, world_size=1)
    one.join()
    await one.expect(Welcome)
    assert await lost_turn(call) in (
        "no message within 0.5 s: try again",
        "no message within 0.5 s while others waited: try again",
    )


async def test_a_call_without_a_join_loses_its_turn_sooner_while_others_wait(in_a_hurry):
    calls = await silent(in_a_hurry, 2)
    await (await late(in_a_hurry)).expect(Welcome)
    ends = [asyncio.create_task(lost_turn(call)) for call in calls]
    ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    texts = {end.result() for end in ended}
    assert texts == {"no message within 0.2 s while others waited: try again"}


async def test_one_connection_with_many_strangers_does_not_block_others(in_a_hurry):
    channel = in_a_hurry.channel()
    calls = [channel.stream_stream(METHOD)() for _ in range(STREAMS_PER_CONNECTION_MAX)]
    while in_a_hurry.server._turns._waiting < len(calls) - 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await (await late(in_a_hurry)).expect(Welcome)
    assert not all(call.done() for call in calls), "it came after all of them"
    for call in calls:
        call.cancel()


async def test_a_joined_worker_is_not_a_stranger(two_strangers):
    members = await two_strangers.running(world_size=1)
    [call] = await silent(two_strangers, 1)
    others = await two_strangers.running(world_size=1, job="other")
    await works(members)
    await works(others)
    call.cancel()


async def test_one_connection_too_many(five_connections):
    members = await five_connections.running(world_size=3)
    address, options = (
        f"127.0.0.1:{five_connections.port}",
        [*NO_PROXY, ("grpc.use_local_subchannel_pool", 1)],
    )
    codes = []
    for _ in range(3):
        five_connections.channels.append(grpc.aio.insecure_channel(address, options))
        health = health_pb2_grpc.HealthStub(five_connections.channels[-1])
        try:
            await health.Check(health_pb2.HealthCheckRequest())
            codes.append(grpc.StatusCode.OK)
        except grpc.aio.AioRpcError as error:
            codes.append(error.code())
    assert codes == [grpc.StatusCode.OK, grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE]
    await works(members)


async def test_one_stream_too_many_on_one_connection_waits(grpc_place):
    channel = grpc_place.channel()
    joins = [
        Join(f"job-{number}", bytes(16), 0, 1, bytes(16), "", 0, 4096)
        for number in range(STREAMS_PER_CONNECTION_MAX + 1)
    ]

    async def welcomed(join):
        call = channel.stream_stream(METHOD)()
        await call.write(wire.worker_frame_to_wire(join))
        assert isinstance(wire.reducer_frame_from_wire(await call.read()), Welcome)
        return call

    calls = [await welcomed(join) for join in joins[:-1]]
    last = asyncio.create_task(welcomed(joins[-1]))
    # Another connection's answer arrives after the last call could have been answered.
    await grpc_place.worker(0, job="elsewhere", world_size=1).welcome()
    assert len(grpc_place.engine.jobs.by_name) == STREAMS_PER_CONNECTION_MAX + 1
    assert not last.done()
    calls[0].cancel()
    await last

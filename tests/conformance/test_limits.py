"""What a server takes at a time: what is past a limit is refused with its value, and the others are served."""

import asyncio

import grpc
import numpy as np
import pytest
from conformance.places import GrpcPlace, TcpPlace
from grpc_health.v1 import health_pb2, health_pb2_grpc
from reduction import wire
from reduction.errors import ResourceExhausted
from reduction.model import Abort, Join, Welcome

from reducer.transports.grpc_server import STREAMS_PER_CONNECTION_MAX, Limits
from worker_plugin.transports.grpc_client import METHOD


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
def five_connections(plane):
    return limited(plane, connections=5)


async def works(workers, seq=0):
    for worker in workers:
        worker.push(np.float32([1, 2]), seq)
    for worker in workers:
        assert (await worker.result(seq)).tolist() == [len(workers), 2 * len(workers)]


async def refusal(worker):
    """Wait for the Abort that ends the worker's stream; return its text."""
    worker.join()
    abort = await worker.next(Abort)
    assert abort.code == ResourceExhausted.code
    await worker.sink.closed
    return abort.message


async def silent(place, count):
    """Return calls that the server knows of, and that have sent nothing."""
    calls = [place.call() for _ in range(count)]
    while place.server._strangers < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return calls


async def test_one_stream_too_many(three_streams):
    members = await three_streams.running(world_size=3)
    late = three_streams.worker(0, job="late", world_size=1)
    assert await refusal(late) == "3 streams are open, which is this reducer's limit: try another, or later"
    await works(members)
    members[2].stream.close()
    await members[2].sink.closed
    await three_streams.worker(0, job="late", world_size=1).welcome()


async def test_many_at_once_get_all_the_room_there_is(three_streams):
    channel = three_streams.channel()

    async def join(number):
        call = channel.stream_stream(METHOD)()
        frame = Join(f"job-{number}", bytes(16), 0, 1, bytes(16), "", 0, 4096)
        await call.write(wire.worker_frame_to_wire(frame))
        return call, wire.reducer_frame_from_wire(await call.read())

    answers = await asyncio.gather(*(join(number) for number in range(40)))
    assert [type(answer) for _, answer in answers].count(Welcome) == 3
    assert [type(answer) for _, answer in answers].count(Abort) == 37
    for call, _ in answers:
        call.cancel()


async def test_one_stranger_too_many(two_strangers):
    calls = await silent(two_strangers, 2)
    text = "2 streams have sent no Join yet, which is this reducer's limit: try again"
    assert await refusal(two_strangers.worker(0, world_size=1)) == text
    calls[0].cancel()
    while two_strangers.server._strangers == 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await works(await two_strangers.running(world_size=1))


async def test_who_has_joined_is_no_stranger(two_strangers):
    members = await two_strangers.running(world_size=1)
    [call] = await silent(two_strangers, 1)
    others = await two_strangers.running(world_size=1, job="other")
    await works(members)
    await works(others)
    call.cancel()


async def test_one_connection_too_many(five_connections):
    members = await five_connections.running(world_size=3)
    address, options = f"127.0.0.1:{five_connections.port}", [("grpc.use_local_subchannel_pool", 1)]
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
    # Another connection's answer comes after what the first one could have got.
    await grpc_place.worker(0, job="elsewhere", world_size=1).welcome()
    assert len(grpc_place.engine.table.jobs) == STREAMS_PER_CONNECTION_MAX + 1
    assert not last.done()
    calls[0].cancel()
    await last

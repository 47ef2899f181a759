"""What every stream over a network must do: the whole of `RemoteStream` and `RemoteEndpoint`."""

import os

import numpy as np
import pytest
from conformance.places import CHUNK, ArenaPlace, G, GrpcPlace, Recorder, TcpPlace, TlsPlace
from reduction.errors import ResourceExhausted
from reduction.model import Ack, Goodbye

from worker_plugin.transports.unopened import UnopenedEndpoint


@pytest.fixture(
    params=[GrpcPlace, TcpPlace, ArenaPlace, TlsPlace], ids=["grpc", "tcp", "tcp-placed", "tcp-tls"]
)
def place(request):
    return request.param()


async def sums(workers, seq):
    for worker in workers:
        worker.push(np.float32([1, 2]), seq)
    for worker in workers:
        assert (await worker.result(seq)).tolist() == [2, 4]


async def test_an_endpoint_reports_its_address(place):
    assert place.endpoint().address == f"127.0.0.1:{place.port}"


async def test_diverting_when_nothing_is_under_way_changes_no_sum(place):
    workers = await place.running()
    for seq in range(3):
        workers[0].stream.divert()
        await sums(workers, seq)
        workers[0].stream.divert()


async def test_a_descriptor_is_open_as_long_as_the_stream_and_no_longer(place):
    workers = await place.running()
    await sums(workers, 0)
    stream = workers[0].stream
    if (number := stream.descriptor) >= 0:
        os.fstat(number)
    stream.close()
    await stream.wait_closed()
    assert stream.descriptor == -1


async def test_sent_statistics_are_available_at_any_time_and_never_shrink(place):
    workers = await place.running()
    stream = workers[0].stream
    await sums(workers, 0)
    before = stream.sent
    await sums(workers, 1)
    after = stream.sent
    if isinstance(place, TcpPlace):
        assert after.segments > before.segments
        assert after.acked_bytes >= before.acked_bytes
    else:
        assert after is before is None
    stream.close()
    await stream.wait_closed()
    assert stream.sent is None


async def test_a_paced_stream_carries_the_same_sums(place):
    workers = await place.running()
    for seq, bytes_per_s in enumerate((1, 10_000_000, 0)):
        for worker in workers:
            worker.stream.pace(bytes_per_s or 1 << 40)
        await sums(workers, seq)


async def test_wait_closed_returns_once_the_sink_is_notified(place):
    workers = await place.running()
    for worker in workers:
        assert not worker.sink.closed.done()
        worker.stream.close()
        await worker.stream.wait_closed()
        assert worker.sink.closed.done()
        await worker.stream.wait_closed()


async def test_a_closed_stream_accepts_and_ignores_every_call(place):
    worker = place.worker(world_size=1)
    await worker.welcome()
    for _ in range(2):
        worker.stream.close()
    await worker.stream.wait_closed()
    assert await worker.sink.closed is None
    worker.send(Ack(0))
    worker.push(np.zeros(CHUNK // 4, np.float32))
    worker.stream.divert()
    worker.stream.close()


async def test_frames_before_close_arrive(place):
    workers = await place.running()
    workers[0].send(Goodbye(0, 0))
    workers[0].stream.close()
    await workers[1].peers(G)


async def test_an_endpoint_that_is_closed_ends_its_streams(place):
    worker = place.worker(world_size=1)
    await worker.welcome()
    await place.endpoints[0].close()
    await worker.sink.closed
    await worker.stream.wait_closed()


async def test_a_stream_that_was_never_opened_ends_with_its_reason():
    sink, error = Recorder(), ResourceExhausted("no descriptors are left")
    endpoint = UnopenedEndpoint("127.0.0.1:1", error)
    assert endpoint.address == "127.0.0.1:1"
    stream = endpoint.open(sink)
    stream.send(Ack(0))
    stream.divert()
    assert not sink.closed.done(), "whoever opened it must hear of it later"
    assert await sink.closed is error
    await stream.wait_closed()
    stream.pace(1)
    assert (stream.descriptor, stream.sent) == (-1, None)
    stream.close()
    await endpoint.close()
    assert sink.frames.empty()

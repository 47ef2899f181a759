"""Behaviour specific to the gRPC plane: malformed frames, statuses, limits, health, and a server that disappears."""

import asyncio
from dataclasses import replace

import grpc
import numpy as np
import pytest
from conformance.places import CHUNK, L, P, Recorder, cut_off_a_deaf_rank
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from reduction import limits, wire
from reduction.client.grpc_client import METHOD, GrpcEndpoint
from reduction.errors import MalformedFrame, ReducerAbsent, ReducerUnavailable, Unauthenticated
from reduction.model import PROTOCOL_VERSION, Abort
from reduction.v1 import reduction_pb2 as pb
from support.network.channels import NO_PROXY
from support.network.relays import StrangePort

from reducer.engine import Engine
from reducer.transports.grpc_server import SERVICE, GrpcServer

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def works(workers, seq=0):
    for worker in workers:
        worker.push(np.float32([1, 2]), seq)
    for worker in workers:
        assert (await worker.result(seq)).tolist() == [len(workers), 2 * len(workers)]


async def ending(call):
    """Read a call that ends with an error; return the last frame and the error."""
    last = None
    while True:
        try:
            last = wire.reducer_frame_from_wire(await call.read())
        except grpc.aio.AioRpcError as error:
            return last, error


# ---- a worker that sends malformed or oversized frames ----


@pytest.mark.parametrize("data", [b"", b"\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x1a\x05abcde", bytes(1000)])
async def test_bytes_that_are_not_a_frame(grpc_place, data):
    others = await grpc_place.running(job="others")
    call = grpc_place.call()
    await call.write(data)
    abort, error = await ending(call)
    assert (abort.code, error.code()) == (MalformedFrame.code, grpc.StatusCode.INVALID_ARGUMENT)
    assert error.details() == abort.message
    await works(others)


async def test_a_chunk_beyond_the_limit(grpc_place):
    zero, one = await grpc_place.running()
    others = await grpc_place.running(job="others")
    one.push(np.zeros(limits.CHUNK_BYTES_MAX // 4 + 1, np.float32))
    abort = await one.next(Abort)
    text = "rank 1 (host1): length of Push.payload is 4194308; allowed: 0 to 4194304"
    assert abort == await zero.next(Abort) == Abort(MalformedFrame.code, text)
    await works(others)


async def test_a_message_beyond_the_limit(grpc_place):
    zero, one = await grpc_place.running()
    others = await grpc_place.running(job="others")
    one.push(np.zeros(limits.FRAME_BYTES_MAX // 4 + 1, np.float32))
    assert type(await one.sink.closed) is ReducerUnavailable
    await zero.peers(P, L)
    await works(others)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol": PROTOCOL_VERSION + 1}, grpc.StatusCode.UNIMPLEMENTED),
        ({"rank": 7}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"job": "one too many"}, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ({"job": "live"}, grpc.StatusCode.ALREADY_EXISTS),
    ],
)
async def test_a_refused_join_ends_with_the_status_of_its_error(grpc_place, changes, code):
    await grpc_place.running(job="live")
    grpc_place.engine.jobs.memory.limit = grpc_place.engine.jobs.memory_reserved_bytes
    worker = grpc_place.worker(life="other")
    worker.join(**changes)
    abort = await worker.next(Abort)
    error = await worker.sink.closed
    assert str(error) == f"127.0.0.1:{grpc_place.port}: {code.name}: {abort.message}"


async def test_a_rank_that_never_reads_is_cut_off_at_a_limit(grpc_place):
    await cut_off_a_deaf_rank(grpc_place)


# ---- a reducer that is absent, stops, or is not a reducer ----


async def test_an_address_where_nothing_listens(grpc_place):
    await grpc_place.server.stop(0)
    worker = grpc_place.worker()
    worker.join()
    error = await worker.sink.closed
    assert type(error) is ReducerAbsent
    assert str(error) == f"127.0.0.1:{grpc_place.port}: Connection refused"


async def test_a_failed_dial_is_unavailable_not_absent_and_gives_a_reason():
    """Cover an address that is not a reducer's, such as a metrics port, and a wrong host name."""
    port = StrangePort(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    reasons = {
        f"127.0.0.1:{port.port}": "something answers there, but it is not a reducer",
        "no-such-host.invalid:1": "the host name does not resolve",
    }
    for address, reason in reasons.items():
        endpoint, sink = GrpcEndpoint(address), Recorder()
        endpoint.open(sink)
        error = await sink.closed
        assert (type(error), str(error)) == (ReducerUnavailable, f"{address}: {reason}")
        await endpoint.close()
    port.cut()


async def test_a_server_that_stops_ends_all_streams(grpc_place):
    workers = await grpc_place.running()
    await grpc_place.server.stop(0)
    for worker in workers:
        assert type(await worker.sink.closed) is ReducerUnavailable


@pytest.mark.parametrize("answer", [b"\xff\xff", b"\x0a\x00", b""])
async def test_a_server_that_sends_no_frames(grpc_place, answer):
    async def session(requests, context):
        yield answer

    handlers = {"Session": grpc.stream_stream_rpc_method_handler(session)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    sink = Recorder()
    endpoint = GrpcEndpoint(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    endpoint.open(sink)
    assert type(await sink.closed) is MalformedFrame
    await endpoint.close()
    await server.stop(0)


async def test_a_proxy_that_requires_authentication(grpc_place):
    async def session(requests, context):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

    handlers = {"Session": grpc.stream_stream_rpc_method_handler(session)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    sink = Recorder()
    endpoint = GrpcEndpoint(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    endpoint.open(sink)
    error = await sink.closed
    assert (type(error), str(error)) == (Unauthenticated, f"{endpoint.address}: who are you?")
    await endpoint.close()
    await server.stop(0)


async def test_closing_the_endpoint_ends_its_streams(grpc_place):
    zero, one = await grpc_place.running()
    await grpc_place.endpoints[1].close()
    await one.sink.closed
    await zero.peers(P, L)


async def test_one_endpoint_may_have_several_streams(grpc_place):
    endpoint = grpc_place.endpoint()
    grpc_place.endpoint = lambda: endpoint
    await works(await grpc_place.running())


# ---- the schema is the wire format ----


async def test_a_client_using_the_generated_classes(grpc_place):
    call = grpc_place.channel().stream_stream(
        METHOD,
        request_serializer=pb.WorkerFrame.SerializeToString,
        response_deserializer=pb.ReducerFrame.FromString,
    )()
    nonce = instance = b"0123456789abcdef"
    join = pb.Join(
        protocol=PROTOCOL_VERSION,
        job="schema",
        instance=instance,
        world_size=1,
        nonce=nonce,
        credit_bytes=CHUNK,
    )
    await call.write(pb.WorkerFrame(join=join))
    welcome = (await call.read()).welcome
    assert welcome.credit_bytes == CHUNK
    member = pb.Member(address="a:1", incarnation=welcome.incarnation, weight=1)
    configuration = pb.Configuration(instance=instance, epoch=1, chunk_bytes=CHUNK, members=[member])
    await call.write(pb.WorkerFrame(hello=pb.Hello(configuration=configuration)))
    collective = pb.Collective(op=pb.REDUCE_OP_SUM, dtype=pb.DTYPE_FLOAT32, numel=2)
    payload = np.float32([1, 2]).tobytes()
    while (await call.read()).WhichOneof("body") != "start":
        pass
    await call.write(pb.WorkerFrame(push=pb.Push(epoch=1, collective=collective, payload=payload)))
    assert (await call.read()).result == pb.Result(epoch=1, payload=payload)
    await call.write(pb.WorkerFrame(goodbye=pb.Goodbye(held=1, minimum=1)))
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_status_matches_the_engine(grpc_place):
    await works(await grpc_place.running())
    status = grpc_place.channel().unary_unary(METHOD.replace("Session", "Status"))
    answer = wire.status_from_wire(await status(b""))
    now = grpc_place.engine.status()
    used = {"cpu_seconds": answer.cpu_seconds, "resident_bytes": answer.resident_bytes}
    assert answer == replace(now, **used)
    assert 0 < answer.cpu_seconds <= now.cpu_seconds
    assert (answer.jobs[0].job, answer.jobs[0].received_bytes, answer.jobs[0].sent_bytes) == ("job", 16, 16)


async def test_drain_asks_the_reducer_to_drain_and_returns_the_maximum_duration(grpc_place):
    drain = grpc_place.channel().unary_unary(METHOD.replace("Session", "Drain"))
    for request in (b"", b"\xff" * 1000):  # it is not read
        assert wire.drain_from_wire(await drain(request)) == 30.0
    assert grpc_place.drains == 2
    await works(await grpc_place.running())


async def test_health_becomes_not_serving(grpc_place):
    health = health_pb2_grpc.HealthStub(grpc_place.channel())
    requests = [health_pb2.HealthCheckRequest(service=name) for name in ("", SERVICE)]
    assert [(await health.Check(request)).status for request in requests] == [SERVING, SERVING]
    await grpc_place.server.not_serving()
    assert [(await health.Check(request)).status for request in requests] == [NOT_SERVING, NOT_SERVING]


async def test_reflection_lists_the_service(grpc_place):
    def services():
        with grpc.insecure_channel(f"127.0.0.1:{grpc_place.port}", NO_PROXY) as channel:
            return ProtoReflectionDescriptorDatabase(channel).get_services()

    assert SERVICE in await asyncio.to_thread(services)


async def test_a_port_that_is_taken(grpc_place):
    second = GrpcServer(Engine(memory_limit_bytes=1))
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{grpc_place.port}"):
        second.bind(f"127.0.0.1:{grpc_place.port}")
    await second.stop(0)

"""Behaviour specific to the TCP plane: moving to it, falling back, malformed bytes, and half-closed streams."""

import asyncio
import logging
import socket

import grpc
import numpy as np
import pytest
from conformance.places import CHUNK, DataConnection, G, L, P, cut_off_a_deaf_rank, received_bytes
from reduction import limits, wire
from reduction.client import tcp_client
from reduction.client.grpc_client import GrpcEndpoint
from reduction.client.tcp_client import TcpEndpoint
from reduction.errors import DataCorrupted, MalformedFrame, ReducerUnavailable
from reduction.model import (
    Abort,
    Configuration,
    DType,
    Goodbye,
    Hello,
    Join,
    Member,
    Moved,
    Peers,
    ReduceOp,
    Start,
    Welcome,
)
from reduction.transports import tcp
from support.network.relays import BAD_PORTS, Relay

from reducer.transports import outbox, tcp_server

MIB = 1 << 20


async def works(workers, seq=0):
    for worker in workers:
        worker.push(np.float32([1, 2]), seq)
    for worker in workers:
        assert (await worker.result(seq)).tolist() == [len(workers), 2 * len(workers)]


def has_moved(worker):
    return worker.stream.descriptor >= 0


# ---- a data port that cannot be used ----


REASONS = {
    "closed": "[Errno 111]",
    "silent": "no answer within 0.05 s",
    "hangs up": "it refused our key",
    "is another service": "it is not a data port",
}


@pytest.mark.parametrize("kind", BAD_PORTS)
async def test_auto_continues_over_grpc_and_tries_again(tcp_place, kind, monkeypatch, caplog):
    monkeypatch.setattr(tcp_client, "DIAL_S", 0.05 if kind == "silent" else 10.0)
    monkeypatch.setattr(tcp_client, "REDIAL_S", (0.01,))
    tcp_place.is_required = False
    bad = tcp_place.way(BAD_PORTS[kind]())
    tcp_place.data_port.port = bad.port
    workers = await tcp_place.running()
    await works(workers)
    assert not any(has_moved(worker) for worker in workers)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2, "one for each endpoint"
    for text in said:
        address = f"127.0.0.1:{tcp_place.port}"
        assert text.startswith(f"{address} offers a data port, {bad.port}, that cannot be used")
        assert REASONS[kind] in text
        assert text.endswith("continuing over gRPC, which costs more CPU, and trying again")
    if kind != "closed":
        await tcp_place.eventually(lambda: bad.count > 4)
    # A later stream of the same endpoint does not wait for the data port.
    monkeypatch.setattr(tcp_client, "DIAL_S", 60.0)
    endpoint = tcp_place.endpoints[1]
    tcp_place.endpoint = lambda: endpoint
    workers[1].stream.close()
    await workers[0].peers(P, L)
    again = tcp_place.worker(1)
    await again.welcome()
    await workers[0].peers(P, P)
    for worker in (workers[0], again):
        worker.hello(2)
    for worker in (workers[0], again):
        await worker.next(Start)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2


@pytest.mark.parametrize("kind", BAD_PORTS)
async def test_tcp_ends_with_a_typed_error_that_says_why(tcp_place, kind, monkeypatch):
    monkeypatch.setattr(tcp_client, "DIAL_S", 0.05 if kind == "silent" else 10.0)
    bad = tcp_place.way(BAD_PORTS[kind]())
    tcp_place.data_port.port = bad.port
    worker = tcp_place.worker()
    await worker.welcome()
    error = await worker.sink.closed
    assert type(error) is ReducerUnavailable
    assert f"127.0.0.1:{tcp_place.port} offers a data port, {bad.port}, that cannot be used" in str(error)
    assert REASONS[kind] in str(error)
    assert "transport is 'tcp'" in str(error)
    await tcp_place.until(lambda: not tcp_place.engine.jobs.streams)


async def test_auto_without_an_offer(grpc_place, caplog):
    endpoints = []

    def endpoint():
        endpoints.append(TcpEndpoint(f"127.0.0.1:{grpc_place.port}", is_required=False))
        grpc_place.endpoints.append(endpoints[-1])
        return endpoints[-1]

    grpc_place.endpoint = endpoint
    workers = await grpc_place.running()
    await works(workers)
    assert not any(has_moved(worker) for worker in workers)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_tcp_without_an_offer(grpc_place):
    grpc_place.endpoints.append(TcpEndpoint(f"127.0.0.1:{grpc_place.port}", is_required=True))
    grpc_place.endpoint = lambda: grpc_place.endpoints[0]
    worker = grpc_place.worker()
    worker.join()
    error = await worker.sink.closed
    assert type(error) is ReducerUnavailable
    assert str(error) == (f"127.0.0.1:{grpc_place.port} offers no TCP data plane, but transport is 'tcp'")


async def test_a_worker_of_the_grpc_plane_ignores_the_offer(tcp_place):
    tcp_place.endpoints.append(GrpcEndpoint(f"127.0.0.1:{tcp_place.port}"))
    tcp_place.endpoint = lambda: tcp_place.endpoints[0]
    workers = await tcp_place.running()
    await works(workers)
    assert len(tcp_place.data_port._offers) == 2, "it may change its mind, as long as its call stands"
    for worker in workers:
        worker.stream.close()
    await tcp_place.until(lambda: not tcp_place.data_port._offers)


async def test_planes_may_differ_from_rank_to_rank(tcp_place):
    by_tcp = tcp_place.endpoint
    endpoints = iter([by_tcp(), GrpcEndpoint(f"127.0.0.1:{tcp_place.port}"), by_tcp()])
    tcp_place.endpoint = lambda: next(endpoints)
    workers = await tcp_place.running(3)
    for seq in range(5):
        await works(workers, seq)
    assert [has_moved(worker) for worker in workers] == [True, False, True]


async def test_the_second_address_of_a_name_is_tried_too(tcp_place, monkeypatch):
    ask = socket.getaddrinfo
    with socket.socket() as held:
        held.bind(("127.0.0.2", 0))  # the first one refuses
        nowhere = (socket.AF_INET, socket.SOCK_STREAM, 6, "", held.getsockname())

        worker = tcp_place.worker()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **what: [nowhere, *ask(*where, **what)])
        await worker.welcome()
        await worker.peers(P)
        worker.hello()
        await tcp_place.until(lambda: tcp_place.engine.jobs.by_name["job", ""].epoch == 1)
        assert has_moved(worker)


async def test_an_answer_that_comes_after_the_worker_gave_up(tcp_place, monkeypatch):
    # The reducer let the connection in, but the worker continues over gRPC. Neither may treat that as an error.
    monkeypatch.setattr(tcp_client, "DIAL_S", 0.05)
    monkeypatch.setattr(tcp_client, "REDIAL_S", (60.0,))
    tcp_place.is_required = False
    relay = tcp_place.way(Relay(tcp_place.data_port.port))
    tcp_place.data_port.port = relay.port
    relay.hold_answers()
    workers = await tcp_place.running()
    await works(workers)
    relay.release_answers()
    await works(workers, 1)
    assert relay.count == 2
    assert not any(worker.sink.closed.done() for worker in workers)


@pytest.mark.parametrize("deaf_dials", [1, 3])
async def test_a_stream_moves_later_when_the_data_port_can_be_reached(
    tcp_place, monkeypatch, caplog, deaf_dials
):
    """A slow dial must not cost the rest of a job: streams move during collectives, and all sums are right."""
    monkeypatch.setattr(tcp_client, "DIAL_S", 0.2)
    monkeypatch.setattr(tcp_client, "REDIAL_S", (0.01,))
    tcp_place.is_required = False
    relay = tcp_place.way(Relay(tcp_place.data_port.port))
    tcp_place.data_port.port = relay.port
    relay.hold_answers()
    workers = await tcp_place.running()
    await tcp_place.eventually(lambda: relay.count >= 2 * deaf_dials)
    assert not any(has_moved(worker) for worker in workers)
    relay.release_answers()
    seq = 0
    while not all(has_moved(worker) for worker in workers) or seq < 20:
        for worker in workers:
            for later in range(3):
                worker.push(np.float32([seq + later, 2]), seq + later)
        for later in range(3):
            for worker in workers:
                assert (await worker.result(seq + later)).tolist() == [2 * (seq + later), 4]
        seq += 3
    texts = [record.getMessage() for record in caplog.records if record.name == tcp_client.__name__]
    again = f"the data port of 127.0.0.1:{tcp_place.port}, {relay.port}, can be used now"
    assert [text == again for text in texts] == [False, False, True, True]


async def test_dialing_stops_when_the_stream_ends(tcp_place, monkeypatch):
    monkeypatch.setattr(tcp_client, "DIAL_S", 0.05)
    monkeypatch.setattr(tcp_client, "REDIAL_S", (0.01,))
    tcp_place.is_required = False
    bad = tcp_place.way(BAD_PORTS["hangs up"]())
    tcp_place.data_port.port = bad.port
    workers = await tcp_place.running()
    await tcp_place.eventually(lambda: bad.count >= 4)
    for worker in workers:
        worker.stream.close()
    for worker in workers:
        assert await worker.sink.closed is None
    tasks = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
    assert "TcpStream._dial" not in tasks


# ---- moving ----


async def test_every_frame_after_the_welcome_may_come_on_either_side_of_the_move(tcp_place):
    # Many joins cause many reports while streams move one after another. None may be lost, doubled or reordered.
    workers = [tcp_place.worker(rank, world_size=16) for rank in range(16)]
    for worker in workers:
        worker.join()
    for worker in workers:
        await worker.expect(Welcome)
    while len(workers[0].seen) < 16:
        known = set(workers[0].seen)
        news = {peer.rank for peer in (await workers[0].next(Peers)).peers}
        assert not news & known, "rank 0 hears of each, once"
    for worker in workers:
        worker.hello()
    for worker in workers:
        await worker.next(Start)
    for seq in range(3):
        await works(workers, seq)
    assert all(has_moved(worker) for worker in workers)


async def test_one_endpoint_may_have_several_streams(tcp_place):
    endpoint = tcp_place.endpoint()
    tcp_place.endpoint = lambda: endpoint
    workers = await tcp_place.running(4)
    await works(workers)
    assert len({worker.stream.descriptor for worker in workers}) == 4


async def moved_by_hand(place, *, world_size=1):
    """Return the bare call and data connection of a rank that has moved, and the Welcome it got."""
    call = place.call()
    await call.write(
        wire.worker_frame_to_wire(Join("hand", bytes(16), 0, world_size, bytes(16), "", 0, CHUNK))
    )
    welcome = wire.reducer_frame_from_wire(await call.read())
    connection = await DataConnection.open("127.0.0.1", welcome.data_port, welcome.data_key)
    await call.write(wire.worker_frame_to_wire(Moved()))
    while not isinstance(wire.reducer_frame_from_wire(await call.read()), Moved):
        pass
    return call, connection, welcome


async def ending(call):
    """Read a call to its end; return its frames and its status."""
    frames = []
    try:
        while (data := await call.read()) is not grpc.aio.EOF:
            frames.append(wire.reducer_frame_from_wire(data))
    except grpc.aio.AioRpcError:
        pass
    return frames, await call.code()


@pytest.mark.parametrize("frame", [Goodbye(0, 0), Moved()])
async def test_a_frame_on_the_call_after_moving(tcp_place, frame):
    others = await tcp_place.running(job="others")
    call, connection, _ = await moved_by_hand(tcp_place)
    await call.write(wire.worker_frame_to_wire(frame))
    text = await connection.rest()
    assert f"{type(frame).__name__} on the call, which does not belong there".encode() in text
    connection.close()
    _, code = await ending(call)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    await works(others)


async def test_moved_on_a_call_without_a_connection(tcp_place, monkeypatch):
    monkeypatch.setattr(outbox, "DATA_KEY_S", 0.05)
    call = tcp_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 0, 1, bytes(16), "", 0, CHUNK)))
    await call.write(wire.worker_frame_to_wire(Moved()))
    frames, code = await ending(call)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert frames[-1].message.endswith("its stream moved, but no connection has come for 0.05 s")


async def test_moved_on_a_call_without_an_offer(grpc_place):
    call = grpc_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 0, 1, bytes(16), "", 0, CHUNK)))
    await call.write(wire.worker_frame_to_wire(Moved()))
    frames, _ = await ending(call)
    assert frames[-1].message.endswith("Moved on the call, which does not belong there")


async def test_the_connection_is_read_after_the_last_frame_of_the_call(tcp_place):
    """Frames that the worker sent on the call come first, however late they arrive."""
    call = tcp_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 0, 1, bytes(16), "", 0, CHUNK)))
    welcome = wire.reducer_frame_from_wire(await call.read())
    connection = await DataConnection.open("127.0.0.1", welcome.data_port, welcome.data_key)
    data = wire.worker_frame_to_wire(Goodbye(0, 0))
    await connection.write(tcp.control_header(data) + data)
    while not isinstance(wire.reducer_frame_from_wire(await call.read()), Moved):
        pass
    member = Member("reducer:1", tcp_place.incarnation)
    hello = Hello(Configuration(bytes(16), 1, CHUNK, (member,)), 0)
    await call.write(wire.worker_frame_to_wire(hello))
    await tcp_place.until(lambda: tcp_place.engine.jobs.by_name["hand", ""].epoch == 1)
    await call.write(wire.worker_frame_to_wire(Moved()))
    await connection.rest()
    connection.close()
    assert (await ending(call))[1] is grpc.StatusCode.OK


async def test_a_key_opens_one_connection(tcp_place, caplog):
    call, connection, welcome = await moved_by_hand(tcp_place)
    second = await DataConnection.dial("127.0.0.1", welcome.data_port)
    await second.write(tcp.PREAMBLE + welcome.data_key)
    assert await second.rest() == b""
    assert "its key matches no open offer" in caplog.text
    # The first connection is unaffected.
    data = wire.worker_frame_to_wire(Goodbye(0, 0))
    await connection.write(tcp.control_header(data) + data)
    await connection.rest()
    connection.close()
    assert (await ending(call))[1] is grpc.StatusCode.OK
    second.close()


async def test_the_key_of_a_stream_that_ended_opens_nothing(tcp_place, caplog):
    call = tcp_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 0, 1, bytes(16), "", 0, CHUNK)))
    welcome = wire.reducer_frame_from_wire(await call.read())
    call.cancel()
    await tcp_place.until(lambda: not tcp_place.engine.jobs.streams)
    connection = await DataConnection.dial("127.0.0.1", welcome.data_port)
    await connection.write(tcp.PREAMBLE + welcome.data_key)
    assert await connection.rest() == b""
    assert "its key matches no open offer" in caplog.text
    connection.close()


async def test_the_key_of_a_stream_that_stayed_on_grpc_opens_nothing(tcp_place, caplog):
    call = tcp_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 0, 1, bytes(16), "", 0, CHUNK)))
    welcome = wire.reducer_frame_from_wire(await call.read())
    member = tcp_place.worker(job="hand").configuration()
    await call.write(wire.worker_frame_to_wire(Hello(member, 0)))
    await tcp_place.eventually(lambda: not tcp_place.data_port._offers)
    connection = await DataConnection.dial("127.0.0.1", welcome.data_port)
    await connection.write(tcp.PREAMBLE + welcome.data_key)
    assert await connection.rest() == b""
    connection.close()


# ---- strangers at the data port ----

STRANGERS = {
    "random bytes": (b"\x00\xffrandom bytes of no meaning", "it does not begin as a data connection"),
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it does not begin as a data connection"),
    "a wrong key": (tcp.PREAMBLE + bytes(limits.DATA_KEY_BYTES), "its key matches no open offer"),
    "silence": (b"", "no key within 0.2 s"),
    "half a preamble": (tcp.PREAMBLE[:4], "no key within 0.2 s"),
    "half a key": (tcp.PREAMBLE + bytes(16), "no key within 0.2 s"),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_a_stranger_is_closed_with_a_reason(tcp_place, name, monkeypatch, caplog):
    monkeypatch.setattr(tcp_server, "DATA_KEY_S", 0.2)
    said, reason = STRANGERS[name]
    workers = await tcp_place.running()
    stranger = await DataConnection.dial("127.0.0.1", tcp_place.data_port.port)
    await stranger.write(said)
    assert await stranger.rest() == b""
    assert f"closed a data connection peer=127.0.0.1 reason={reason}" in caplog.text
    stranger.close()
    await works(workers)


async def test_a_matching_key_prefix_is_not_enough(tcp_place, caplog):
    call = tcp_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 0, 1, bytes(16), "", 0, CHUNK)))
    welcome = wire.reducer_frame_from_wire(await call.read())
    connection = await DataConnection.dial("127.0.0.1", welcome.data_port)
    await connection.write(tcp.PREAMBLE + welcome.data_key[:-1] + bytes([welcome.data_key[-1] ^ 1]))
    assert await connection.rest() == b""
    assert "its key matches no open offer" in caplog.text
    connection.close()
    # A wrong key does not use up the offer either.
    (await DataConnection.open("127.0.0.1", welcome.data_port, welcome.data_key)).close()


@pytest.mark.parametrize("ending", ["end", "reset"])
async def test_a_stranger_that_leaves(tcp_place, ending, caplog):
    stranger = await DataConnection.dial("127.0.0.1", tcp_place.data_port.port)
    await stranger.write(tcp.PREAMBLE)
    if ending == "reset":
        stranger.close()
    else:
        stranger.writer.write_eof()
        assert await stranger.rest() == b""
        assert "reason=it ended before it was let in" in caplog.text
        stranger.close()
    await works(await tcp_place.running())


async def test_a_key_sent_byte_by_byte(tcp_place):
    call = tcp_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 0, 1, bytes(16), "", 0, CHUNK)))
    welcome = wire.reducer_frame_from_wire(await call.read())
    connection = await DataConnection.dial("127.0.0.1", welcome.data_port)
    for byte in tcp.PREAMBLE + welcome.data_key:
        await connection.write(bytes([byte]))
    assert await connection.reader.readexactly(len(tcp.PREAMBLE)) == tcp.PREAMBLE
    connection.close()


async def test_strangers_are_limited_and_make_room_when_they_leave(tcp_place, monkeypatch, caplog):
    monkeypatch.setattr(tcp_server, "DATA_STRANGERS_MAX", 3)
    port = tcp_place.data_port.port
    strangers = [await DataConnection.dial("127.0.0.1", port) for _ in range(3)]
    await tcp_place.eventually(lambda: len(tcp_place.data_port._strangers) == 3)
    turned_away = await DataConnection.dial("127.0.0.1", port)
    assert await turned_away.rest() == b""
    assert "closed a data connection reason=3 others have shown no key yet" in caplog.text
    turned_away.close()
    for stranger in strangers:
        stranger.close()
    await tcp_place.eventually(lambda: not tcp_place.data_port._strangers)
    await works(await tcp_place.running())


async def test_running_out_of_descriptors_stops_no_job(tcp_place, monkeypatch, caplog):
    monkeypatch.setattr(tcp_server, "PAUSE_S", 0.05)
    port, listener = tcp_place.data_port, tcp_place.data_port._listeners[0]

    class Exhausted:
        """The listener while no descriptors are available."""

        def fileno(self):
            return listener.fileno()

        def accept(self):
            port._listeners[0] = listener  # as if descriptors were available again
            pause = port._resume
            port._resume = lambda _: pause(listener)
            raise OSError(24, "Too many open files")

        def close(self):
            listener.close()

    workers = await tcp_place.running()
    asyncio.get_running_loop().remove_reader(listener.fileno())
    port._listeners[0] = Exhausted()
    port._resume(port._listeners[0])
    later = asyncio.create_task(tcp_place.running(job="later"))
    await tcp_place.eventually(
        lambda: "data port cannot accept reason=[Errno 24] Too many open files" in caplog.text
    )
    await works(workers)
    await works(await later)


# ---- messages that no worker sends ----


def header(kind=tcp.CONTROL, op=0, dtype=0, length=0, chunk=0, epoch=0, seq=0, mark=0, numel=0, print_=0):
    return tcp.pack_header(kind, op, dtype, 0, length, chunk, 0, epoch, seq, mark, numel, print_)


BAD_MESSAGES = {
    "kind": (header(9), "a message of kind 9, which this side does not accept"),
    "result": (
        header(tcp.RESULT, length=4) + b"abcd",
        "a message of kind 3, which this side does not accept",
    ),
    "long frame": (
        header(length=limits.REDUCER_CONTROL_BYTES_MAX + 1),
        f"a frame of {limits.REDUCER_CONTROL_BYTES_MAX + 1} bytes; the limit is {limits.REDUCER_CONTROL_BYTES_MAX}",
    ),
    "long push": (
        header(tcp.PUSH, 1, 1, limits.CHUNK_BYTES_MAX + 1),
        f"length of Push.payload is {limits.CHUNK_BYTES_MAX + 1}; allowed: 0 to {limits.CHUNK_BYTES_MAX}",
    ),
    "empty frame": (header(), "a worker frame of 0 bytes has no body that this version knows"),
    "no frame": (header(length=3) + b"\xff\xff\xff", "3 bytes are not a WorkerFrame"),
    "op": (header(tcp.PUSH, 9, 1), "Collective.op is 9; this version knows 1 SUM, 2 AVG"),
    "dtype": (header(tcp.PUSH, 1, 99), "Collective.dtype is 99"),
    "numel": (header(tcp.PUSH, 1, 1, numel=1 << 60), f"Push.collective.numel is {1 << 60}"),
    "average of integers": (
        header(tcp.PUSH, ReduceOp.AVG, DType.INT64, numel=1),
        "Push.collective asks for AVG of INT64",
    ),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_a_bad_message_ends_the_stream_with_its_reason(tcp_place, name):
    data, text = BAD_MESSAGES[name]
    others = await tcp_place.running(job="others")
    zero, one = await tcp_place.running()
    one.stream._connection.send(data[: tcp.HEADER_BYTES], data[tcp.HEADER_BYTES :])
    abort = await one.next(Abort)
    assert abort.code == MalformedFrame.code
    assert abort.message.startswith(f"rank 1 (host1): {text}"), abort.message
    assert await one.sink.closed is not None
    assert (await zero.next(Abort)).message == abort.message
    await works(others)


async def test_a_damaged_frame_ends_its_stream_and_not_the_job(tcp_place):
    zero, one = await tcp_place.running()
    frame = wire.worker_frame_to_wire(Goodbye(0, 0))
    one.stream._connection.send(tcp.control_header(frame), bytes([frame[0] ^ 1]) + frame[1:])
    abort = await one.next(Abort)
    assert abort.code == DataCorrupted.code
    assert f"a frame of {len(frame)} bytes arrived damaged" in abort.message
    await zero.peers(P, L)


@pytest.mark.parametrize("cut", [1, tcp.HEADER_BYTES - 1, tcp.HEADER_BYTES, tcp.HEADER_BYTES + 100])
async def test_a_connection_that_ends_mid_message(tcp_place, cut):
    zero = tcp_place.worker(0, job="hand")
    zero.instance = bytes(16)
    await zero.welcome()
    call = tcp_place.call()
    await call.write(wire.worker_frame_to_wire(Join("hand", bytes(16), 1, 2, b"1" * 16, "", 0, CHUNK)))
    welcome = wire.reducer_frame_from_wire(await call.read())
    connection = await DataConnection.open("127.0.0.1", welcome.data_port, welcome.data_key)
    await call.write(wire.worker_frame_to_wire(Moved()))
    await zero.peers(P, P)
    await connection.write((header(tcp.PUSH, 1, 1, 1024, numel=256) + bytes(1024))[:cut])
    connection.writer.write_eof()
    await zero.peers(P, L)
    connection.close()
    call.cancel()


# ---- the end ----


async def test_an_abort_and_everything_before_it_arrive_before_the_end(tcp_place):
    zero, one = await tcp_place.running(credit=2 * MIB, chunk_bytes=MIB)
    for worker in (zero, one):
        for seq in range(2):
            worker.push(np.ones(MIB // 4, np.float32), seq, numel=MIB)
        # Otherwise the other rank's error could arrive before this rank's pushes, and there would be no result.
        await tcp_place.eventually(
            lambda least=(worker.rank + 1) * 2 * MIB: received_bytes(tcp_place) >= least
        )
    one.push(np.ones(3, np.float32), 2, numel=4)
    assert (await one.result(0)).sum() == MIB // 2
    assert (await one.result(1)).sum() == MIB // 2
    assert (await one.next(Abort)).code == MalformedFrame.code
    assert await one.sink.closed is not None


@pytest.mark.parametrize("moved", [False, True])
async def test_frames_sent_before_close_arrive(tcp_place, moved):
    zero, one = tcp_place.worker(0), tcp_place.worker(1)
    await zero.welcome()
    await one.welcome()
    if moved:
        await one.peers(P)
        one.hello()
        await tcp_place.eventually(lambda: has_moved(one))
    one.send(Goodbye(0, 0))
    one.stream.close()
    one.stream.close()
    await zero.peers(P, G)
    assert await one.sink.closed is None


async def test_close_before_the_welcome(tcp_place):
    worker = tcp_place.worker()
    worker.join()
    worker.stream.close()
    assert await worker.sink.closed is None
    await tcp_place.until(lambda: not tcp_place.engine.jobs.streams)


async def test_a_server_that_stops_ends_all_streams(tcp_place):
    workers = await tcp_place.running()
    await tcp_place.server.stop(0)
    for worker in workers:
        assert type(await worker.sink.closed) is ReducerUnavailable


async def test_the_data_port_may_close_while_streams_continue(tcp_place):
    workers = await tcp_place.running()
    stranger = await DataConnection.dial("127.0.0.1", tcp_place.data_port.port)
    await tcp_place.eventually(lambda: tcp_place.data_port._strangers)
    tcp_place.data_port.stop()
    assert await stranger.rest() == b"", "nobody will ask for its key"
    stranger.close()
    await works(workers)
    with pytest.raises(ConnectionRefusedError):
        await DataConnection.dial("127.0.0.1", tcp_place.data_port.port)


@pytest.mark.parametrize("half", ["call", "data"])
@pytest.mark.parametrize("busy", [False, True])
async def test_cutting_either_half_ends_the_stream_once(tcp_place, half, busy, monkeypatch):
    monkeypatch.setattr(tcp_client, "LINGER_S", 0.1)
    calls = tcp_place.way(Relay(tcp_place.port))
    data = tcp_place.way(Relay(tcp_place.data_port.port))
    zero = tcp_place.worker(0)
    await zero.welcome(credit_bytes=8 * MIB)
    await tcp_place.eventually(lambda: not tcp_place.data_port._offers)
    tcp_place.data_port.port = data.port
    tcp_place.endpoints.append(TcpEndpoint(f"127.0.0.1:{calls.port}", is_required=True))
    tcp_place.endpoint = lambda: tcp_place.endpoints[-1]
    one = tcp_place.worker(1)
    await one.welcome(credit_bytes=8 * MIB)
    for worker in (zero, one):
        worker.hello(chunk_bytes=MIB)
    for worker in (zero, one):
        await worker.next(Start)
    await works([zero, one])
    assert has_moved(one)
    if busy:
        data.hold_answers()
        for seq in range(1, 5):
            for worker in (zero, one):
                worker.push(np.ones(MIB // 4, np.float32), seq, numel=MIB)
        for seq in range(1, 5):
            await zero.result(seq)
    (calls if half == "call" else data).cut()
    assert type(await one.sink.closed) is ReducerUnavailable
    await zero.peers(P, L)


async def test_a_rank_that_never_reads_is_cut_off_at_a_limit(tcp_place, caplog):
    await cut_off_a_deaf_rank(tcp_place)
    assert "bytes wait unread, the limit is" in caplog.text

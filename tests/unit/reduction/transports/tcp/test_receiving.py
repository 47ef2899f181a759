"""The TCP plane's receiver: messages from a byte stream. tests/property/test_streams.py has fragments and ends."""

import asyncio
import contextlib
import socket
from itertools import pairwise

import pytest
from crc32c import crc32c
from reduction import limits
from reduction.errors import DataCorrupted, MalformedFrame, OutOfOrder, ResourceExhausted
from reduction.model import Collective, DType, Push, ReduceOp, Result
from reduction.transports import tcp
from support.network.tcp_pair import (
    Recorder,
    connected,
    control,
    on_loop,
    pattern,
    push,
    receive,
    reset,
    result,
    run,
    send_all,
    settle,
    tcp_pair,
    unix_pair,
    until,
)

U64 = (1 << 64) - 1


def low_water(connection):
    """Return how many bytes the kernel waits for before it wakes up the connection."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as sock:
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


# ---- headers ----


@on_loop
async def test_headers_arrive_as_they_were_sent():
    what = Collective(ReduceOp.AVG, DType.INT64, limits.NUMEL_MAX, U64)
    epoch, seq, chunk, mark, crc = U64, U64 - 1, (1 << 32) - 1, U64 - 2, (1 << 32) - 3
    payload = memoryview(b"payload")
    with connected() as (_, handler, peer):
        peer.send(tcp.push_header(Push(epoch, seq, chunk, what, mark, payload, crc)) + payload)
        peer.send(tcp.result_header(Result(epoch, seq, chunk, mark, payload)) + payload)
        peer.send(tcp.control_header(payload) + payload)
        await handler.count(3)
        assert [bytes(taken) for _, taken in handler.messages] == [b"payload"] * 3
        assert [header.checksum for header in handler.placed] == [crc, None, crc32c(payload)]
        flags, place = tcp.HAS_CRC, (epoch, seq, mark)
        expected = [
            tcp.Header(tcp.PUSH, what.op, what.dtype, flags, 7, chunk, crc, *place, what.numel, U64),
            tcp.Header(tcp.RESULT, 0, 0, 0, 7, chunk, 0, *place, 0, 0),
            tcp.Header(tcp.CONTROL, 0, 0, flags, 7, 0, crc32c(payload), 0, 0, 0, 0, 0),
        ]
        assert [header for header, _ in handler.messages] == handler.placed == expected


def test_the_bytes_of_a_header_are_fixed():
    # The two sides may be different builds, so a change here needs another PREAMBLE.
    what = Collective(ReduceOp.SUM, DType.BFLOAT16, 0x0A0B, 0x1122334455667788)
    header = tcp.push_header(Push(5, 6, 7, what, 8, memoryview(bytes(258))))
    assert header.hex() == (
        "02010300"
        "02010000"
        "07000000"
        "00000000"
        "0500000000000000"
        "0600000000000000"
        "0800000000000000"
        "0b0a000000000000"
        "8877665544332211"
        "bd0d0e64"
    )
    assert tcp.result_header(Result(5, 6, 7, 8, memoryview(bytes(258)))).hex() == (
        "03000000"
        "02010000"
        "07000000"
        "00000000"
        "0500000000000000"
        "0600000000000000"
        "0800000000000000"
        "0000000000000000"
        "0000000000000000"
        "33adb37b"
    )
    with_crc = tcp.result_header(Result(5, 6, 7, 8, memoryview(bytes(258)), 0xAABBCCDD))
    assert with_crc.hex()[:32] == "030000010201000007000000ddccbbaa"
    assert tcp.control_header(b"123456789").hex() == (
        "010000010900000000000000839206e3" + "00" * 40 + "07618a65"
    )
    assert tcp.PREAMBLE == b"RDSTCP2\n"


# ---- fragments ----

STREAM = result(0, pattern(9)) + push(1) + control(pattern(3, 5)) + result(2, pattern(2))
TAKEN = [(0, pattern(9)), (1, b""), (0, pattern(3, 5)), (2, pattern(2))]


@pytest.mark.parametrize("first", [None, *range(1, len(STREAM))])
@on_loop
async def test_messages_may_arrive_split_at_any_byte_or_byte_by_byte(first):
    cuts = range(len(STREAM) + 1) if first is None else (0, first, len(STREAM))
    with connected() as (connection, handler, peer):
        for begin, end in pairwise(cuts):
            peer.send(STREAM[begin:end])
            await settle(connection)
        assert await handler.count(4) == TAKEN
        assert handler.ends == []


@on_loop
async def test_a_message_is_handed_over_before_the_next_one_is_placed():
    # Memory that one result frees may be what the next one needs.
    order = []
    with connected() as (_, handler, peer):
        handler.on_place = lambda header: order.append(("place", header.seq))
        handler.on_payload = lambda header: order.append(("message", header.seq))
        peer.send(result(0, b"abc") + result(1) + result(2, b"d"))
        await handler.count(3)
        assert order == [(what, seq) for seq in range(3) for what in ("place", "message")]


def test_connections_take_turns():
    # Both have a hundred messages waiting. The second one must not wait for all of the first one's.
    log = []

    async def test():
        with connected() as (_, left, left_peer), connected() as (_, right, right_peer):
            left.on_payload = lambda header: log.append("left")
            right.on_payload = lambda header: log.append("right")
            for peer in (left_peer, right_peer):
                peer.send(b"".join(result(seq, b"payload") for seq in range(100)))
            await left.count(100)
            await right.count(100)

    run(test())
    other = "left" if log[0] == "right" else "right"
    assert log.index(other) <= tcp.MESSAGES_PER_WAKE


# ---- memory ----


@on_loop
async def test_a_payload_is_received_straight_into_its_memory():
    arena = bytearray(b"." * 30)
    with connected() as (connection, handler, peer):
        given = memoryview(arena)[10:20]
        handler.memory = [given]
        message = result(0, b"0123456789")
        peer.send(message[:-4])
        await settle(connection)
        assert arena == b"." * 10 + b"012345" + b"." * 14
        peer.send(message[-4:] + result(1, b"next"))
        await handler.count(2)
        assert handler.messages[0][1] is given
        assert arena == b"." * 10 + b"0123456789" + b"." * 10


@pytest.mark.parametrize(
    "received", [0, 1, tcp.HEADER_BYTES - 1, *(tcp.HEADER_BYTES + n for n in (0, 1, 6, 9))]
)
@on_loop
async def test_diverting_moves_the_rest_of_a_payload_and_does_nothing_between_payloads(received):
    payload = b"0123456789"
    arena = bytearray(b"." * len(payload))
    with connected() as (connection, handler, peer):
        given = memoryview(arena)
        handler.memory = [given]
        message = result(0, payload)
        peer.send(message[:received])
        await settle(connection)
        connection.divert()
        connection.divert()
        peer.send(message[received:] + result(1, b"next"))
        assert await handler.count(2) == [(0, payload), (1, b"next")]
        is_between = received < tcp.HEADER_BYTES
        assert (handler.messages[0][1] is given) == is_between
        written = payload if is_between else payload[: received - tcp.HEADER_BYTES]
        assert arena == written.ljust(len(payload), b"."), "it is somebody else's by now"


@on_loop
async def test_diverting_from_within_a_message():
    with connected() as (connection, handler, peer):
        handler.on_payload = lambda header: connection.divert()
        peer.send(result(0, b"abcd") + result(1, b"efgh"))
        assert await handler.count(2) == [(0, b"abcd"), (1, b"efgh")]


# ---- waking up within a payload ----


@pytest.mark.parametrize("receive_bytes", [None, 4096], ids=["default", "smallest"])
@on_loop
async def test_a_payload_larger_than_the_receive_buffer_arrives(receive_bytes):
    payload = pattern(4096) * 1024
    assert len(payload) == limits.CHUNK_BYTES_MAX
    with connected(tcp_pair, receive_bytes=receive_bytes) as (_, handler, peer):
        await send_all(peer, result(0, payload) + result(1, b"next"))
        assert await handler.count(2) == [(0, payload), (1, b"next")]


@on_loop
async def test_the_wakeup_threshold_is_what_is_missing_up_to_a_limit():
    size = tcp.WAKE_BYTES_MAX + 1000
    message = result(0, pattern(size))
    with connected(tcp_pair) as (connection, handler, peer):
        assert low_water(connection) == 1
        await send_all(peer, message[: tcp.HEADER_BYTES + 10])
        await handler.until(lambda own: own.placed)
        await until(lambda: low_water(connection) == tcp.WAKE_BYTES_MAX)
        await send_all(peer, message[tcp.HEADER_BYTES + 10 : -7])
        await until(lambda: low_water(connection) == 7)
        assert handler.messages == []
        await send_all(peer, message[-7:])
        await handler.count(1)
        assert low_water(connection) == 1


@pytest.mark.parametrize("how", ["end", "reset"])
@on_loop
async def test_an_end_within_a_payload_is_noticed_however_much_is_missing(how):
    message = result(0, pattern(1 << 20))
    with connected(tcp_pair) as (connection, handler, peer):
        await send_all(peer, message[:1000])
        await handler.until(lambda own: own.placed)
        await until(lambda: low_water(connection) != 1)
        peer.close() if how == "end" else reset(peer)
        assert isinstance(await handler.end(), ConnectionResetError)


# ---- damage ----


@pytest.mark.parametrize("byte", range(tcp.HEADER_BYTES))
@on_loop
async def test_a_header_damaged_anywhere_is_rejected(byte):
    """A wrong length would misplace the next header; a wrong seq or chunk would select another payload's memory."""
    with connected() as (_, handler, peer):
        damaged = bytearray(result(1, b"next"))
        damaged[byte] ^= 1 << byte % 8
        peer.send(result(0, b"abcd") + damaged)
        assert isinstance(await handler.end(), DataCorrupted)
        assert [header.seq for header in handler.placed] == [0]


# ---- ends ----


@pytest.mark.parametrize("part", [0, 30, tcp.HEADER_BYTES + 3])
@on_loop
async def test_data_that_arrives_with_a_reset_is_delivered_first(part):
    """The loop reports both together and nothing after that. All complete messages arrive first, and then the end."""
    whole = 3 * tcp.MESSAGES_PER_WAKE
    with connected(tcp_pair) as (connection, handler, peer):
        peer.send(
            b"".join(result(seq, b"payload") for seq in range(whole)) + result(whole, b"payload")[:part]
        )
        reset(peer)
        assert isinstance(await handler.end(), ConnectionResetError) or not part
        assert [header.seq for header, _ in handler.messages] == list(range(whole))
        assert connection.is_closed


def refuses(error, at=1):
    """Return what raises this error for the message number `at`."""

    def refuse(header):
        if header.seq == at:
            raise error

    return refuse


@pytest.mark.parametrize(
    ("refused", "kind"),
    [(MalformedFrame("no place"), MalformedFrame), (MemoryError(), ResourceExhausted)],
)
@on_loop
async def test_a_header_whose_payload_has_no_place_ends_the_connection(refused, kind):
    with connected() as (connection, handler, peer):
        handler.on_place = refuses(refused)
        peer.send(result(0, b"payload") + result(1, b"payload") + result(2, b"payload"))
        error = await handler.end()
        assert type(error) is kind
        assert "no place" in str(error) or "no memory" in str(error)
        assert [header.seq for header, _ in handler.messages] == [0]
        assert connection.is_closed
        with contextlib.suppress(ConnectionResetError):  # unread data turns it into one
            assert await receive(peer, 1) == b""


@pytest.mark.parametrize("payload", [b"", b"payload"])
@on_loop
async def test_a_message_that_is_refused_ends_the_connection(payload):
    refused = OutOfOrder("not now")
    with connected() as (connection, handler, peer):
        handler.on_payload = refuses(refused)
        peer.send(b"".join(result(seq, payload) for seq in range(3)))
        assert await handler.end() is refused
        assert [header.seq for header, _ in handler.messages] == [0, 1]
        assert connection.is_closed


@pytest.mark.parametrize("within", ["place", "payload"])
def test_a_bug_in_the_owner_ends_the_connection_and_is_seen_once(within):
    # It would be reported repeatedly, as long as there is something to read.
    bug = RuntimeError("a bug")

    async def test():
        with connected() as (connection, handler, peer):
            setattr(handler, f"on_{within}", refuses(bug, at=0))
            peer.send(result(0, b"payload") + result(1, b"payload"))
            assert await handler.end() is bug
            assert connection.is_closed

    run(test(), bugs=[bug])


@pytest.mark.parametrize("payload", [b"", b"payload"])
@on_loop
async def test_closing_from_within_a_message(payload):
    with connected() as (connection, handler, peer):
        handler.on_payload = lambda header: connection.close()
        peer.send(b"".join(result(seq, payload) for seq in range(3)))
        assert await handler.end() is None
        assert [header.seq for header, _ in handler.messages] == [0]


@on_loop
async def test_closing_within_a_payload_lets_its_memory_go():
    with connected() as (connection, handler, peer):
        given = bytearray(7)
        handler.memory = [memoryview(given)]
        peer.send(result(0, b"payload")[:-1])
        await settle(connection)
        connection.close()
        given.append(0)  # BufferError while a view of it exists


@on_loop
async def test_data_that_arrives_before_start_is_received_on_start():
    sock, peer = unix_pair()
    sock.setblocking(False)
    handler = Recorder()
    connection = tcp.Connection(sock, asyncio.get_running_loop(), handler)
    peer.send(result(0, b"payload"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert handler.messages == []
    connection.start()
    assert await handler.count(1) == [(0, b"payload")]
    connection.close()
    peer.close()


# ---- sockets ----


@pytest.mark.parametrize("knows_idle", [True, False])
def test_a_data_connection_sets_its_socket_options(knows_idle, monkeypatch):
    with socket.socket() as sock:
        idle = socket.IPPROTO_TCP, socket.TCP_KEEPIDLE
        wanted_s = tcp.KEEPALIVE_S if knows_idle else sock.getsockopt(*idle)
        if not knows_idle:
            monkeypatch.delattr(socket, "TCP_KEEPIDLE")
        tcp.prepare(sock)
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        # Firewalls forget connections after as little as ten minutes of silence.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert tcp.KEEPALIVE_S < 600
        assert sock.getsockopt(*idle) == wanted_s


# ---- memory for frames without a destination ----


@pytest.mark.parametrize("length", [0, 1, limits.REDUCER_CONTROL_BYTES_MAX])
def test_memory_for_control_frames(length):
    memory = tcp.control_payload(tcp.Header(tcp.CONTROL, 0, 0, 0, length, 0, 0, 0, 0, 0, 0, 0))
    assert memory.nbytes == length
    assert not memory.readonly


@pytest.mark.parametrize(
    ("kind", "length", "text"),
    [
        (kind, 1, f"of kind {kind}, which this side does not accept")
        for kind in (0, tcp.PUSH, tcp.RESULT, 4, 255)
    ]
    + [
        (tcp.CONTROL, length, f"{length} bytes; the limit is {limits.REDUCER_CONTROL_BYTES_MAX}")
        for length in (limits.REDUCER_CONTROL_BYTES_MAX + 1, (1 << 32) - 1)
    ],
)
def test_no_memory_for_another_kind_or_a_frame_that_is_too_long(kind, length, text):
    with pytest.raises(MalformedFrame, match=text):
        tcp.control_payload(tcp.Header(kind, 0, 0, 0, length, 0, 0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("at", range(tcp.HEADER_BYTES + 5))
def test_any_flipped_bit_of_a_control_frame_is_detected(at):
    frame = control(pattern(5))
    for bit in range(8):
        data = bytearray(frame)
        data[at] ^= 1 << bit
        payload = memoryview(data)[tcp.HEADER_BYTES :]
        with pytest.raises(DataCorrupted):
            tcp.control_frame(tcp.parse_header(data[: tcp.HEADER_BYTES]), payload)


def test_a_control_frame_may_come_without_a_checksum():
    header = tcp.Header(tcp.CONTROL, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0)
    assert tcp.control_frame(header, memoryview(b"ab")) == b"ab"


# ---- before the messages ----


@on_loop
async def test_exactly_the_requested_bytes_come_however_they_arrive():
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.sendall(b"pre")
        receiving = asyncio.create_task(tcp.receive_exactly(loop, here, 8, "it went away"))
        await asyncio.sleep(0)
        there.sendall(b"amble" + b"and more")
        assert await receiving == b"preamble"
        there.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError, match="it went away"):
            await tcp.receive_exactly(loop, here, 9, "it went away")


def test_a_payload_is_no_longer_than_a_chunk_can_be():
    def header(length):
        return tcp.Header(tcp.PUSH, 0, 0, 0, length, 0, 0, 0, 0, 0, 0, 0)

    tcp.check_payload(header(limits.CHUNK_BYTES_MAX), "Push")
    with pytest.raises(MalformedFrame, match=r"length of Push.payload is 4194305; allowed: 0 to 4194304"):
        tcp.check_payload(header(limits.CHUNK_BYTES_MAX + 1), "Push")

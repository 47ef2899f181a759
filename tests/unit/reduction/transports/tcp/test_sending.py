"""The TCP plane's sender: everything is sent in order and once, however slowly the peer reads."""

import asyncio
import os
import socket
import sys

import pytest
from reduction.pacing import BURST_BYTES_LEAST, burst_bytes
from reduction.transports import tcp
from reduction.transports.tcp.socket_options import END_OF_PACKET
from support.network.tcp_pair import (
    connected,
    on_loop,
    pattern,
    receive,
    reset,
    result,
    run,
    send_all,
    tcp_pair,
    unix_pair,
    until,
)

MIB = 1 << 20


def fill(connection, size=64 * 1024):
    """Send messages until the kernel accepts no more; return all that was sent."""
    sent = bytearray()
    while not connection.queued_bytes:
        payload = pattern(size, len(sent))
        header = result(len(sent), payload)[: tcp.HEADER_BYTES]
        connection.send(header, payload)
        sent += header + payload
    return sent


def send(connection, seq, payload=b""):
    connection.send(result(seq, payload)[: tcp.HEADER_BYTES], payload)


# ---- in order and once ----


@pytest.mark.parametrize("make", [unix_pair, tcp_pair])
@pytest.mark.parametrize("size", [1, 1000, 64 * 1024, 4 * MIB])
@on_loop
async def test_data_the_kernel_does_not_take_is_queued_and_sent_in_order(make, size):
    with connected(make) as (connection, _, peer):
        sent = fill(connection, size)
        for seq in range(1100):  # twice as many buffers as one sendmsg call accepts
            send(connection, seq, pattern(30, seq))
            sent += result(seq, pattern(30, seq))
        queued = connection.queued_bytes
        assert 1100 * (tcp.HEADER_BYTES + 30) < queued <= len(sent)
        assert await receive(peer, len(sent)) == sent
        await until(lambda: not connection.queued_bytes)
        for part in (memoryview(b"at once again"), b""):
            send(connection, 7, part)
            assert connection.queued_bytes == 0
        late = result(7, b"at once again") + result(7)
        assert await receive(peer, len(late)) == late


def test_a_drained_socket_is_no_longer_watched():
    # asyncio's own loop tells whether it watched a descriptor. One that is always writable would make it spin.
    async def test():
        with connected() as (connection, _, peer):
            sent = fill(connection)
            await receive(peer, len(sent))
            await until(lambda: not connection.queued_bytes)
            assert not asyncio.get_running_loop().remove_writer(connection.fileno())

    run(test(), asyncio.run)


@on_loop
async def test_queued_bytes_are_what_the_kernel_has_not_taken():
    with connected(tcp_pair) as (connection, _, peer):
        sent = fill(connection, MIB)
        seen = connection.queued_bytes
        received = 0
        while connection.queued_bytes:
            received += len(await receive(peer, 100_000))
            assert connection.queued_bytes <= seen, "it grows though nothing is sent"
            seen = connection.queued_bytes
            assert connection.queued_bytes + received <= len(sent)
        assert received + len(await receive(peer, len(sent) - received)) == len(sent)


@on_loop
async def test_a_payload_is_sent_without_a_copy():
    with connected() as (connection, _, peer):
        sent = fill(connection)
        payload = bytearray(b"before")
        send(connection, 1, memoryview(payload))
        payload[:] = b"after."  # forbidden in production; here it shows that there was no copy
        await receive(peer, len(sent) + tcp.HEADER_BYTES)
        assert await receive(peer, 6) == b"after."


@on_loop
async def test_both_directions_at_once():
    # Each side sends more than the buffers hold. If one only sent, or only received, both would wait forever.
    with connected(tcp_pair) as (connection, handler, peer):
        sent = fill(connection, MIB)
        message = result(5, pattern(2 * MIB))
        writing = asyncio.create_task(send_all(peer, message))
        await handler.count(1)
        await writing
        assert await receive(peer, len(sent)) == sent


@on_loop
async def test_sending_from_within_a_message():
    with connected() as (connection, handler, peer):
        handler.on_payload = lambda header: send(connection, header.seq + 100, b"answer")
        peer.send(b"".join(result(seq, b"question") for seq in range(3)))
        expected = b"".join(result(seq + 100, b"answer") for seq in range(3))
        assert await receive(peer, len(expected)) == expected


# ---- finish ----


@pytest.mark.parametrize("make", [unix_pair, tcp_pair])
@pytest.mark.parametrize("full", [False, True])
@on_loop
async def test_finish_ends_our_direction_after_what_was_sent(make, full):
    with connected(make) as (connection, handler, peer):
        sent = fill(connection) if full else bytearray()
        send(connection, 1, b"last")
        sent += result(1, b"last")
        connection.finish()
        connection.finish()
        send(connection, 2, b"too late")
        assert await receive(peer, len(sent) + 1) == sent
        # The other direction stays open.
        await send_all(peer, result(3, b"answer"))
        assert await handler.count(1) == [(3, b"answer")]
        assert handler.ends == []
        peer.close()
        assert await handler.end() is None


@on_loop
async def test_finish_with_nothing_sent():
    with connected() as (connection, handler, peer):
        connection.finish()
        assert await receive(peer, 1) == b""
        assert handler.ends == []


# ---- close ----


@on_loop
async def test_close_drops_queued_data_and_notifies_once():
    error = ConnectionResetError("why")
    with connected() as (connection, handler, peer):
        fill(connection)
        connection.close(error)
        connection.close()
        assert (connection.queued_bytes, connection.is_closed, connection.fileno()) == (0, True, -1)
        send(connection, 1, b"too late")
        connection.start()
        connection.divert()
        connection.finish()
        assert connection.queued_bytes == 0
        assert handler.ends == [error]
        while await asyncio.get_running_loop().sock_recv(peer, MIB):
            pass


@pytest.mark.parametrize("messages", [1, 3])
@on_loop
async def test_a_failed_send_ends_the_connection_but_not_before_it_returns(messages):
    # The sender may be iterating over a list of connections, or over state that this end changes.
    with connected(tcp_pair) as (connection, handler, peer):
        asyncio.get_running_loop().remove_reader(connection.fileno())  # so that only sending can discover it
        peer.close()
        while not handler.ends:
            for seq in range(messages):
                send(connection, seq, b"payload")
                assert handler.ends == []
            await asyncio.sleep(0)
        error = await handler.end()
        assert isinstance(error, BrokenPipeError | ConnectionResetError)
        send(connection, 1, b"too late")
        assert connection.queued_bytes == 0


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("finish", [None, "before", "after"])
@on_loop
async def test_a_peer_that_disconnects(full, finish):
    with connected(tcp_pair) as (connection, handler, peer):
        if full:
            fill(connection, MIB)
        if finish == "before":
            connection.finish()
        reset(peer)
        if finish == "after":
            connection.finish()
        assert isinstance(await handler.end(), ConnectionError)
        assert connection.queued_bytes == 0


# ---- losses ----


class TcpInfo:
    """A socket whose kernel reports how much was retransmitted, and how much of that was spurious."""

    family = socket.AF_INET

    def __init__(self, total_retrans, dsack_dups, length=248):
        self._info = bytearray(length)
        self._info[100:104] = total_retrans.to_bytes(4, sys.byteorder)
        self._info[216:220] = dsack_dups.to_bytes(4, sys.byteorder)

    def fileno(self):
        return -1

    def getsockopt(self, level, option, length):
        return bytes(self._info[:length])


@pytest.mark.parametrize(("sent_again", "for_nothing", "lost"), [(0, 0, 0), (7, 2, 5), (2, 3, 0)])
def test_spurious_retransmissions_are_not_losses(sent_again, for_nothing, lost):
    assert tcp.Connection(TcpInfo(sent_again, for_nothing), None, None).packets_lost == lost


def test_an_old_kernel_reports_no_losses():
    assert tcp.Connection(TcpInfo(7, 2, length=192), None, None).packets_lost == 0


@pytest.mark.parametrize("make", [unix_pair, tcp_pair])
@on_loop
async def test_nothing_is_lost_on_the_way_to_this_process(make):
    with connected(make) as (connection, _, _):
        assert connection.packets_lost == 0
        connection.close()
        assert connection.packets_lost == 0


@on_loop
async def test_a_paced_connection_sends_no_faster_and_knows_what_it_has_sent():
    with connected(tcp_pair) as (connection, _, peer):
        for rate in (10_000_000, 10_000_000, 20_000_000):
            connection.pace(rate)
            with socket.socket(fileno=socket.dup(connection.fileno())) as sock:
                assert int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, 47, 8), sys.byteorder) == rate
        connection.send(bytes(tcp.HEADER_BYTES), memoryview(bytes(1000)))
        await asyncio.get_running_loop().sock_recv(peer, tcp.HEADER_BYTES + 1000)
        assert connection.sent.segments >= 1
        assert connection.sent.lost == 0
        connection.close()
        connection.pace(30_000_000)  # nothing left to pace


@pytest.mark.parametrize("nbytes", [BURST_BYTES_LEAST, BURST_BYTES_LEAST + 1, 64 * BURST_BYTES_LEAST])
@on_loop
async def test_a_paced_connection_sends_a_long_message_as_packets_that_its_pace_allows(nbytes):
    loop = asyncio.get_running_loop()
    with connected(tcp_pair) as (connection, _, peer):
        connection.pace(100_000_000_000)
        connection.pace(8_000_000)
        payload = os.urandom(nbytes)
        connection.send(bytes(tcp.HEADER_BYTES), payload)
        connection.send(bytes(tcp.HEADER_BYTES), b"")
        received = b""
        while len(received) < nbytes + 2 * tcp.HEADER_BYTES:
            received += await loop.sock_recv(peer, 1 << 20)
        assert received == bytes(tcp.HEADER_BYTES) + payload + bytes(tcp.HEADER_BYTES)
        # Loopback accepts packets of 64 KiB, so each is one segment.
        assert connection.sent.segments >= nbytes // burst_bytes(8_000_000)


@pytest.mark.parametrize(("bytes_per_s", "flags"), [(0, 0), (8_000_000, END_OF_PACKET), (1 << 40, 0)])
@on_loop
async def test_only_a_slow_pace_keeps_the_kernel_from_filling_its_packets(bytes_per_s, flags):
    seen = []

    class Spy(socket.socket):
        def sendmsg(self, buffers, ancillary=(), flags=0):
            seen.append(flags)
            return super().sendmsg(buffers, ancillary, flags)

    def spied_pair():
        ours, theirs = tcp_pair()
        return Spy(fileno=ours.detach()), theirs

    with connected(spied_pair) as (connection, _, _):
        if bytes_per_s:
            connection.pace(bytes_per_s)
        send(connection, 0, b"text")
        assert seen == [flags]


@on_loop
async def test_the_path_is_known_until_the_connection_is_closed_and_then_remembered():
    with connected(tcp_pair) as (connection, _, _):
        assert 0 < connection.path.rtt_s < 60
        assert connection.path.packets_lost == 0
        connection.close()
        assert connection.path.rtt_s > 0

"""Messages over TLS: complete, in order and once, however records are split. Data from anyone else ends it."""

import asyncio
import socket
import ssl
from contextlib import contextmanager
from dataclasses import replace

import pytest
from reduction.security.tls import TlsFiles
from reduction.transports import tcp
from reduction.transports.tcp import Connection, TlsSocket
from support.network.certificates import Authority
from support.network.tcp_pair import Recorder, on_loop, pattern, result, run, tcp_pair

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate that is valid for both sides."""
    return Authority(tmp_path_factory.mktemp("certificates")).files("127.0.0.1")


async def shake_hands(server: TlsFiles, client: TlsFiles, sockets, name="127.0.0.1"):
    """Return both ends; raise any error of either end."""
    loop = asyncio.get_running_loop()
    for sock in sockets:
        sock.setblocking(False)
    ends = (
        TlsSocket(sockets[0], server.server_context()),
        TlsSocket(sockets[1], client.client_context(), name),
    )
    await asyncio.gather(*(end.handshake(loop) for end in ends))
    return ends


async def tls_pair(files, receive_bytes=None):
    return await shake_hands(files, files, tcp_pair(receive_bytes))


@contextmanager
def serving(channel):
    """Yield a started Connection and its Recorder."""
    handler = Recorder()
    connection = Connection(channel, asyncio.get_running_loop(), handler)
    connection.start()
    try:
        yield connection, handler
    finally:
        connection.close()


def ciphertext(peer: TlsSocket, data: bytes) -> bytes:
    """Return the records of some bytes, without sending them."""
    view = memoryview(data)
    while view:
        view = view[peer._encrypt([view]) :]
    return peer._to_send.read()


def send(connection, seq, payload):
    connection.send(result(seq, payload)[: tcp.HEADER_BYTES], payload)


# ---- complete, in order and once ----


@on_loop
async def test_both_sides_see_each_others_certificate(files):
    server, client = await tls_pair(files)
    _, certificate, _ = files.read()
    expected = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
    assert server.peer_certificate() == client.peer_certificate() == expected
    for end in (server, client):
        assert end.family == socket.AF_INET
        end.close()


@on_loop
async def test_nothing_is_received_before_anything_arrives(files):
    server, client = await tls_pair(files)
    with pytest.raises(BlockingIOError):
        server.recvmsg_into([memoryview(bytearray(9))])
    assert not server.has_more
    for end in (server, client):
        end.close()


@pytest.mark.parametrize("paces", [(), (200, 10, 20, 200)])
@on_loop
async def test_messages_of_all_sizes_in_both_directions(files, paces):
    sizes = (0, 1, 1000, 16 * KIB, 16 * KIB + 1, 128 * KIB, 4 * MIB, 3)
    payloads = [pattern(size, size) for size in sizes]
    server, client = await tls_pair(files, 64 * KIB)
    for end in (server, client):  # the kernel accepts parts of what one call encrypts
        end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
    with serving(server) as (one, ones), serving(client) as (two, twos):
        for seq, payload in enumerate(payloads):
            send(one, seq, payload)
            send(two, seq, payload)
        assert two.queued_bytes > 2 * MIB  # the kernel does not accept everything in one call
        for megabytes_per_s in paces:  # while encrypted data is waiting
            await asyncio.sleep(0)
            for end in (one, two):
                end.pace(megabytes_per_s * 10**6)
        for handler in (ones, twos):
            assert await handler.count(len(sizes)) == list(enumerate(payloads))
        assert one.queued_bytes == two.queued_bytes == 0


@on_loop
async def test_data_that_came_with_the_greeting_is_received(files):
    server, client = await tls_pair(files)
    loop = asyncio.get_running_loop()
    await tcp.send_all(loop, client, tcp.PREAMBLE + result(0, b"early"))
    assert await tcp.receive_exactly(loop, server, len(tcp.PREAMBLE), "it ended") == tcp.PREAMBLE
    assert server.has_more
    with serving(server) as (_, handler):
        assert await handler.count(1) == [(0, b"early")]
    client.close()


@pytest.mark.parametrize(
    "held", [1, 4, 16, 17, 18, 21, 22, 23, 5000, 16 * KIB, 16 * KIB + 22, 17 * KIB, 40 * KIB]
)
@on_loop
async def test_the_end_of_a_payload_is_never_waited_for_in_vain(files, held):
    # OpenSSL holds the received part of a record, so the kernel must not wait for all the missing bytes.
    payload = pattern(256 * KIB)
    server, client = await tls_pair(files)
    data = ciphertext(client, result(0, payload))
    with serving(server) as (_, handler):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client.socket, data[:-held])
        await handler.until(lambda own: own.placed)
        for _ in range(100):  # it takes the available bytes
            await asyncio.sleep(0)
        await loop.sock_sendall(client.socket, data[-held:])
        assert await handler.count(1) == [(0, payload)]
    client.close()


@on_loop
async def test_how_much_the_kernel_must_still_receive_is_known_to_the_byte(files):
    server, client = await tls_pair(files)
    size, records = 40 * KIB, 40 * KIB + 3 * 22
    for cut in (
        1,
        4,
        5,
        6,
        16 * KIB,
        16 * KIB + 4,
        16 * KIB + 5,
        16 * KIB + 21,
        16 * KIB + 22,
        records - 1,
    ):
        data, memory = ciphertext(client, pattern(size)), memoryview(bytearray(size))
        await asyncio.get_running_loop().sock_sendall(client.socket, data[:cut])
        try:
            got = server.recvmsg_into([memory])[0]
        except BlockingIOError:
            got = 0
        assert server.missing(size - got) == records - cut
        await asyncio.get_running_loop().sock_sendall(client.socket, data[cut:])
        server.recvmsg_into([memory[got:]])
        assert memory == pattern(size)
    for end in (server, client):
        end.close()


@on_loop
async def test_small_records_do_not_starve_the_loop(files):
    payload = pattern(3000)
    server, client = await tls_pair(files)
    records = ciphertext(client, result(0, payload)[: tcp.HEADER_BYTES])
    records += b"".join(ciphertext(client, payload[index : index + 1]) for index in range(len(payload)))
    turns, ran = [], 0

    def count():
        nonlocal ran
        ran += 1
        asyncio.get_running_loop().call_soon(count)

    with serving(server) as (_, handler):
        read = server.recvmsg_into

        def noting(buffers):
            turns.append(ran)
            return read(buffers)

        server.recvmsg_into = noting
        count()
        await asyncio.get_running_loop().sock_sendall(client.socket, records)
        assert await handler.count(1) == [(0, payload)]
    assert len(set(turns)) >= len(payload) // 256
    client.close()


# ---- how it ends ----


def half(message):
    return message[: len(message) // 2]


@pytest.mark.parametrize(
    ("sent", "kind"), [(b"", type(None)), (result(1), type(None)), (half(result(1, b"p" * 100)), OSError)]
)
@pytest.mark.parametrize("how", ["end of the stream", "close_notify"])
@on_loop
async def test_an_end_is_clean_between_messages_and_an_error_within_one(files, sent, kind, how):
    server, client = await tls_pair(files)
    with serving(server) as (_, handler):
        await client.sendall(asyncio.get_running_loop(), result(0, b"first") + sent)
        if how == "close_notify":
            with pytest.raises(ssl.SSLWantReadError):
                client._tls.unwrap()
            client.socket.send(client._to_send.read())
        else:
            client.close()
        assert isinstance(await handler.end(), kind)
        assert handler.messages[0][1] == b"first"
        assert len(handler.messages) == 1 + (sent == result(1))
    client.close()


@on_loop
async def test_finish_ends_both_sides_after_the_last_message(files):
    server, client = await tls_pair(files)
    with serving(server) as (one, ones), serving(client) as (two, twos):
        send(two, 0, b"last")
        two.finish()
        assert await ones.count(1) == [(0, b"last")]
        assert await ones.end() is None
        assert one.is_closed
        assert await twos.end() is None


# ---- the handshake ----


@pytest.mark.parametrize(
    ("is_ours", "name", "text"),
    [(True, "127.0.0.2", "IP address mismatch"), (False, "127.0.0.1", "certificate verify failed")],
)
def test_the_dialing_side_accepts_no_other_server(files, tmp_path, is_ours, name, text):
    client = files if is_ours else replace(files, ca=Authority(tmp_path, "other").ca)
    ours, theirs = tcp_pair()

    async def test():
        with pytest.raises(ssl.SSLError, match=text):
            await shake_hands(files, client, (ours, theirs), name)

    with ours, theirs:
        run(test())


@pytest.mark.parametrize("side", [0, 1])
@on_loop
async def test_an_end_during_the_handshake(files, side):
    sockets = tcp_pair()
    sockets[side].setblocking(False)
    context = files.client_context() if side else files.server_context()
    channel = TlsSocket(sockets[side], context, "127.0.0.1" if side else None)
    sockets[1 - side].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError, match="during the TLS handshake"):
        await channel.handshake(asyncio.get_running_loop())
    for sock in sockets:
        sock.close()


@on_loop
async def test_an_end_before_the_first_message(files):
    server, client = await tls_pair(files)
    client.close()
    with pytest.raises(ConnectionResetError, match="it left"):
        await tcp.receive_exactly(asyncio.get_running_loop(), server, 1, "it left")
    server.close()

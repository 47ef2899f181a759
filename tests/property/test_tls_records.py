"""Whatever a network does to TLS records, what is delivered is a beginning of what was sent."""

import asyncio
import contextlib
import itertools
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from reduction.security.tls import TlsFiles
from reduction.transports.tcp import Connection, TlsSocket
from support.network.certificates import Authority
from support.network.tcp_pair import Recorder, pattern, result, run, tcp_pair


@cache
def files() -> TlsFiles:
    return Authority(Path(tempfile.mkdtemp(prefix="reduction-tls-"))).files("127.0.0.1")


@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=6),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    damage=st.none() | st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
)
def test_what_is_delivered_is_a_beginning_of_what_was_sent(sizes, cuts, damage):
    sent = [pattern(size, seq) for seq, size in enumerate(sizes)]

    async def test():
        loop = asyncio.get_running_loop()
        sockets = tcp_pair()
        for sock in sockets:
            sock.setblocking(False)
        server = TlsSocket(sockets[0], files().server_context())
        client = TlsSocket(sockets[1], files().client_context(), "127.0.0.1")
        await asyncio.gather(server.handshake(loop), client.handshake(loop))
        for seq, payload in enumerate(sent):
            client._tls.write(result(seq, payload))
        stream = bytearray(client._to_send.read())
        if damage is not None:
            stream[int(damage[0] * len(stream))] ^= damage[1]
        handler = Recorder()
        connection = Connection(server, loop, handler)
        connection.start()
        places = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
        with contextlib.suppress(ConnectionError):  # the receiver has seen the damage already
            for begin, end in itertools.pairwise(places):
                await loop.sock_sendall(client.socket, stream[begin:end])
                await asyncio.sleep(0)
        client.close()
        error = await handler.end()
        got = [bytes(payload) for _, payload in handler.messages]
        assert got == sent[: len(got)]
        assert damage is not None or (len(got), error) == (len(sent), None)
        assert damage is None or len(got) < len(sent) or error is not None

    run(test())

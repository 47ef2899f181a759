"""Whatever a network does to a stream of messages, the delivered messages are a prefix of those sent."""

import asyncio
import contextlib
import itertools
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.security.tls import TlsFiles
from reduction.transports.tcp import HEADER_BYTES, MESSAGES_PER_WAKE, Connection, TlsSocket
from support.network.certificates import Authority
from support.network.tcp_pair import Recorder, connected, pattern, reset, result, run, tcp_pair, unix_pair

#: Sizes of payloads: a few large ones, or many small ones, only some of which are taken per wake-up.
SIZES = st.lists(st.integers(0, 40_000), max_size=6) | st.lists(
    st.sampled_from([0, 0, 1, 300]), max_size=5 * MESSAGES_PER_WAKE
)
#: Where a stream is cut into pieces, and where it is damaged or ends.
CUTS = st.lists(st.floats(0, 1), max_size=6)
PLACES = st.floats(0, 1, exclude_max=True)


async def send_in_pieces(peer, stream, cuts):
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):  # the receiver has seen enough already
        for begin, end in itertools.pairwise(
            sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
        ):
            await loop.sock_sendall(peer, stream[begin:end])
            await asyncio.sleep(0)


@pytest.mark.parametrize(("make", "is_reset"), [(unix_pair, False), (tcp_pair, False), (tcp_pair, True)])
@given(sizes=SIZES, cuts=CUTS, left_out=st.just(0) | st.integers(0, HEADER_BYTES + 400))
def test_all_whole_messages_are_delivered_before_the_end(make, is_reset, sizes, cuts, left_out):
    """A reset counts as an end too: the loop reports it together with data, and nothing after that."""
    messages = [result(seq, pattern(size, seq)) for seq, size in enumerate(sizes)]
    stream = b"".join(messages)
    stream = stream[: max(0, len(stream) - left_out)]
    ends = list(itertools.accumulate(map(len, messages), initial=0))
    whole = sum(end <= len(stream) for end in ends) - 1

    async def test():
        with connected(make) as (connection, handler, peer):
            await send_in_pieces(peer, stream, cuts)
            reset(peer) if is_reset else peer.close()
            error = await handler.end()
            assert [bytes(payload) for _, payload in handler.messages] == [
                pattern(size, seq) for seq, size in enumerate(sizes[:whole])
            ]
            assert [header.seq for header, _ in handler.messages] == list(range(whole))
            is_between = len(stream) == ends[whole]
            assert type(error) is ConnectionResetError or (is_between and error is None)
            assert not is_between or is_reset or error is None
            assert is_between or is_reset or "in the middle of a frame" in str(error)
            assert connection.is_closed
            assert connection.fileno() == -1

    run(test())


@cache
def files() -> TlsFiles:
    return Authority(Path(tempfile.mkdtemp(prefix="reduction-tls-"))).files("127.0.0.1")


@given(
    sizes=SIZES,
    cuts=CUTS,
    damage=st.none() | st.tuples(PLACES, st.integers(1, 255)),
    stop=st.none() | PLACES,
    is_reset=st.booleans(),
)
def test_tls_delivers_only_intact_messages_even_if_a_record_is_damaged(sizes, cuts, damage, stop, is_reset):
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
        if stop is not None:
            del stream[int(stop * len(stream)) :]
        if damage is not None and stream:
            stream[int(damage[0] * len(stream))] ^= damage[1]
        handler = Recorder()
        connection = Connection(server, loop, handler)
        connection.start()
        await send_in_pieces(client.socket, stream, cuts)
        reset(client.socket) if is_reset else client.close()
        error = await handler.end()
        got = [bytes(payload) for _, payload in handler.messages]
        assert got == sent[: len(got)]
        assert isinstance(error, OSError | None)
        if damage is None and stop is None:
            assert len(got) == len(sent)
            assert error is None or is_reset
        assert not damage or not stream or len(got) < len(sent) or error is not None

    run(test())

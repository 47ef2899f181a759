"""The HTTP port on the test's loop: refusals, limits, and behaviour without descriptors."""

import asyncio
import contextlib
import os
import resource
import socket
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.limits import HTTP_CONNECTIONS_MAX, HTTP_HEAD_BYTES_MAX
from reduction.log_limit import BURST

from reducer.binding import listen
from reducer.transports import http_server
from reducer.transports.http_server import Answer, HttpPort

GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"


#: Writers of the connections that a test has made.
writers = []


async def ok(request):
    return Answer("é")


@contextlib.asynccontextmanager
async def serving(respond=ok):
    """Serve at an address; yield the address."""
    [listener] = listen("127.0.0.1", 0)
    serving = asyncio.create_task(HttpPort([listener], respond).serve())
    try:
        yield listener.getsockname()
    finally:
        serving.cancel()
        listener.close()
        for writer in writers:
            writer.transport.abort()
        writers.clear()
        await asyncio.sleep(0)


async def connect(address):
    reader, writer = await asyncio.open_connection(*address)
    writers.append(writer)
    return reader, writer


async def answer_to(address, request):
    """Return the status line, headers and body of the response to these bytes."""
    reader, writer = await connect(address)
    writer.write(request)
    return split(await reader.read())


def split(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    return line, dict(header.split(": ", 1) for header in headers), body


async def asked(request, respond=ok):
    async with serving(respond) as address:
        return await answer_to(address, request)


async def test_an_answer_ends_its_connection():
    line, headers, body = await asked(GET)
    assert (line, body.decode()) == ("HTTP/1.1 200 OK", "é")
    del headers["Date"]
    assert headers == {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": "2",
        "Connection": "close",
    }


async def test_head_gets_the_headers_only():
    line, headers, body = await asked(GET.replace(b"GET", b"HEAD"))
    assert (line, headers["Content-Length"], body) == ("HTTP/1.1 200 OK", "2", b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
async def test_other_methods_get_a_refusal_even_with_a_large_body(method):
    body = bytes(1 << 20)
    head = f"{method} /livez HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    line, headers, _ = await asked(head.encode() + body)
    assert (line, headers["Allow"]) == ("HTTP/1.1 405 Method Not Allowed", "GET, HEAD")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + bytes(HTTP_HEAD_BYTES_MAX) + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
async def test_invalid_requests_are_refused(request_bytes, status):
    assert (await asked(request_bytes))[0] == f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"


@given(
    st.lists(
        st.sampled_from([b"GET", b" ", b"/", b"\r\n", b":", b"Host", b"HTTP/1.1", b"\n", b"\0", b"\xff"])
    )
)
def test_every_head_gets_one_of_three_answers(parts):
    line, *_ = asyncio.run(asked(b"".join(parts) + b"\r\n\r\n"))
    assert line.split(" ")[1] in ("200", "400", "405")


@pytest.mark.parametrize(
    ("head", "seen"),
    [
        (b"GET /a%20b?c=d HTTP/1.0", "/a%20b "),
        (b"GET / HTTP/1.1\r\nA: b\r\nhOST:  [::1]:5 ", "/ [::1]:5"),
    ],
)
async def test_path_and_host_of_a_request(head, seen):
    async def echo(request):
        return Answer(f"{request.path} {request.host}")

    assert (await asked(head + b"\r\n\r\n", echo))[2].decode() == seen


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHo"])
async def test_a_connection_without_a_whole_request_is_closed(sent, monkeypatch):
    monkeypatch.setattr(http_server, "HTTP_REQUEST_S", 0.05)
    async with serving() as address:
        reader, writer = await connect(address)
        writer.write(sent)
        assert await reader.read() == b""


async def test_clients_that_do_not_read_are_disconnected(monkeypatch):
    monkeypatch.setattr(http_server, "HTTP_ANSWER_S", 0.2)
    ended = asyncio.Event()

    async def large(request):
        asyncio.current_task().add_done_callback(lambda _: ended.set())
        return Answer("x" * (64 << 20))

    async with serving(large) as address:
        _, writer = await connect(address)
        writer.write(GET)
        await ended.wait()


async def test_idle_connections_keep_nobody_out_and_the_oldest_is_closed_first(monkeypatch):
    monkeypatch.setattr(http_server, "HTTP_REQUEST_S", 1000)
    async with serving() as address:
        idle = [await connect(address) for _ in range(HTTP_CONNECTIONS_MAX)]
        assert (await answer_to(address, GET))[0] == "HTTP/1.1 200 OK"
        assert await idle[0][0].read() == b""
        idle[-1][1].write(GET)
        assert split(await idle[-1][0].read())[0] == "HTTP/1.1 200 OK"


async def test_there_are_never_more_connections_than_the_limit(monkeypatch):
    """Many connections arrive faster than the oldest can end."""
    monkeypatch.setattr(http_server, "HTTP_REQUEST_S", 1000)
    async with serving() as address:
        before = len(os.listdir("/dev/fd"))
        sockets = [socket.socket() for _ in range(6 * HTTP_CONNECTIONS_MAX)]
        for sock in sockets:
            sock.connect(address)  # so that all of them wait when the loop accepts the first
        await answer_to(address, GET)
        extra = len(os.listdir("/dev/fd")) - before - len(sockets)
        for sock in sockets:
            sock.close()
    # The connection of the last request also has both its ends in this process.
    assert extra <= HTTP_CONNECTIONS_MAX + 2


async def test_connections_awaiting_an_answer_are_closed_last():
    may_answer = asyncio.Event()

    async def slow(request):
        await may_answer.wait()
        return Answer("late")

    async with serving(slow) as address:
        reader, writer = await connect(address)
        writer.write(GET)
        for _ in range(2 * HTTP_CONNECTIONS_MAX):
            await connect(address)
        may_answer.set()
        assert split(await reader.read())[2] == b"late"


async def test_connections_that_all_wait_for_answers_keep_nobody_out_either():
    async def slow(request):
        if request.path == "/metrics":
            await asyncio.Event().wait()
        return Answer("ok")

    async with serving(slow) as address:
        kept = [await connect(address) for _ in range(HTTP_CONNECTIONS_MAX)]
        for _, writer in kept:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await answer_to(address, GET))[0] == "HTTP/1.1 200 OK"


@contextlib.contextmanager
def no_descriptors():
    """Take all descriptors that the process may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 100, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.parametrize("idle", [0, 5])
async def test_without_descriptors_requests_are_answered_one_by_one(idle):
    loop = asyncio.get_running_loop()
    sockets = [socket.socket() for _ in range(3)]  # while descriptors are left
    async with serving() as address:
        for _ in range(idle):
            await connect(address)
        await asyncio.sleep(0)
        with no_descriptors():
            for sock in sockets:
                with sock:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, address)
                    await loop.sock_sendall(sock, GET)
                    answer = b""
                    while data := await loop.sock_recv(sock, 1 << 16):
                        answer += data
                assert split(answer)[0] == "HTTP/1.1 200 OK"


async def test_a_failing_answer_is_a_500_error_and_logged_only_a_few_times(caplog):
    async def broken(request):
        raise OSError(24, "Too many open files")

    async with serving(broken) as address:
        for _ in range(BURST + 2):
            assert (await answer_to(address, GET))[0] == "HTTP/1.1 500 Internal Server Error"
    assert [record.message for record in caplog.records if record.name == http_server.__name__] == [
        "no answer over HTTP path=/livez reason=OSError(24, 'Too many open files')"
    ] * BURST

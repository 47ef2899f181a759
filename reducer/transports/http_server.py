"""The HTTP port, which answers one GET or HEAD request per connection and then closes the connection.

It runs on one thread with its own event loop. So a busy data path cannot delay a probe, and strangers at this port
cannot delay the data path. The port holds at most HTTP_CONNECTIONS_MAX connections. One more ends the oldest that waits
for a request or for the client to close, or else the oldest of all, so idle connections block no one. A spare
descriptor lets it answer probes, one after the other, while the process has no other descriptor left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus

from reduction.limits import HTTP_ANSWER_S, HTTP_CONNECTIONS_MAX, HTTP_HEAD_BYTES_MAX, HTTP_REQUEST_S
from reduction.log_limit import LINES

log = logging.getLogger(__name__)

#: Pause after a connection could not be accepted and no descriptor could be freed, in seconds.
PAUSE_S = 0.1
#: How long a connection may stay after its answer, in seconds. If it were closed with bytes unread, the kernel would
#: reset it, and the client might lose the answer.
LINGER_S = 1.0
_END = b"\r\n\r\n"
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_RECEIVE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """The relevant parts of a request."""

    path: str
    #: The name and port by which the client addresses this server; empty if not given.
    host: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request for a path."""

    text: str
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    #: Headers other than the type and the length.
    headers: tuple[tuple[str, str], ...] = ()


#: Runs on the port's loop, which it must not block.
Respond = Callable[[Request], Awaitable[Answer]]


class HttpPort:
    """Server on listening sockets, which it owns."""

    def __init__(self, listeners: Sequence[socket.socket], respond: Respond) -> None:
        self._listeners = listeners
        self._respond = respond
        #: The connections in order of arrival, and whether each is being answered.
        self._connections: dict[asyncio.Task[None], bool] = {}
        self._spare: int | None = None
        self._keep_spare()

    def start(self) -> None:
        """Start serving on a daemon thread."""
        threading.Thread(target=asyncio.run, args=(self.serve(),), name="reducer-http", daemon=True).start()

    async def serve(self) -> None:
        """Serve forever."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._resume(listener)
        await asyncio.Event().wait()

    def _resume(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection. If that fails, retry immediately or after a pause."""
        if len(self._connections) >= HTTP_CONNECTIONS_MAX:
            self._end_oldest()  # its end takes a few turns of the loop
            return
        try:
            sock, _ = listener.accept()
        except BlockingIOError:  # the client has disconnected
            return
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS or not self._make_room():
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(PAUSE_S, self._resume, listener)
            return
        sock.setblocking(False)
        task = asyncio.create_task(self._converse(sock))
        self._connections[task] = False
        task.add_done_callback(partial(self._on_end, sock))

    def _make_room(self) -> bool:
        """Free a descriptor, and return whether that was possible."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            return True
        return self._end_oldest()

    def _end_oldest(self) -> bool:
        oldest = min(self._connections, key=self._connections.__getitem__, default=None)
        return oldest is not None and oldest.cancel()

    def _on_end(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        sock.close()
        self._keep_spare()

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    async def _converse(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        with suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(HTTP_REQUEST_S):
                head = await _head(sock)
            self._connections[task] = True
            async with asyncio.timeout(HTTP_ANSWER_S):
                await loop.sock_sendall(sock, await self._answer(head))
            self._connections[task] = False
            sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                while await loop.sock_recv(sock, _RECEIVE_BYTES):
                    pass

    async def _answer(self, head: bytes) -> bytes:
        """Return the bytes of the answer to a request that begins with `head`."""
        method, asked = _parse(head)
        if isinstance(asked, Answer):
            return _to_bytes(asked)
        try:
            found = await self._respond(asked)
        except Exception as error:
            LINES.log(
                log, logging.WARNING, "HTTP", "", "no answer over HTTP path=%s reason=%r", asked.path, error
            )
            found = Answer("this failed; the log has more\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        return _to_bytes(found, has_body=method != "HEAD")


async def _head(sock: socket.socket) -> bytes:
    """Return the head of a request and any data after it; if the head is too long, only its beginning.

    Raises:
        ConnectionError: the client has sent only a part of the head.
    """
    loop = asyncio.get_running_loop()
    head = b""
    while _END not in head and len(head) < HTTP_HEAD_BYTES_MAX:
        data = await loop.sock_recv(sock, HTTP_HEAD_BYTES_MAX - len(head))
        if not data:
            raise ConnectionError
        head += data
    return head


def _parse(head: bytes) -> tuple[str, Request | Answer]:
    """Return the method and the rest of a request, or the answer to a refused request."""
    text, end, _ = head.partition(_END)
    if not end:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        return "", Answer(f"a request may have {HTTP_HEAD_BYTES_MAX} bytes before its body\n", status=status)
    line, *fields = text.decode("latin-1").split("\r\n")
    method, _, rest = line.partition(" ")
    target, _, version = rest.rpartition(" ")
    split = [field.partition(":") for field in fields]
    hosts = [value.strip() for name, _, value in split if name.lower() == "host"]
    if not target.startswith("/") or not version.startswith("HTTP/1.") or len(hosts) > 1:
        return "", Answer("this is not a request of HTTP/1.1\n", status=HTTPStatus.BAD_REQUEST)
    if method not in ("GET", "HEAD"):
        allow = ("Allow", "GET, HEAD")
        return "", Answer("only GET and HEAD\n", status=HTTPStatus.METHOD_NOT_ALLOWED, headers=(allow,))
    return method, Request(target.partition("?")[0], "".join(hosts))


def _to_bytes(answer: Answer, *, has_body: bool = True) -> bytes:
    body = answer.text.encode()
    headers = [
        ("Date", formatdate(usegmt=True)),
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        *answer.headers,
    ]
    lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}", *map(": ".join, headers), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body if has_body else b"")

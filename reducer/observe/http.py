"""The HTTP port of a reducer process, --metrics-port.

/livez    200 while the event loop answers
/readyz   200 from the ready line on until the process drains or stops
/metrics  for Prometheus
/         with --page: what `reducer top` shows (`reducer/observe/page/routes.py`)

The names and codes of the first two are those of Kubernetes
(https://kubernetes.io/docs/reference/using-api/health-checks/). A new page is a new line in `_routes`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from reducer.observe.metrics import ANSWER_S

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


@dataclass(frozen=True, slots=True)
class Answer:
    """What is at a path."""

    text: str
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    #: Beside the type and the length.
    headers: tuple[tuple[str, str], ...] = ()


#: Makes the answer anew for each request.
Page = Callable[[], Answer]


class Health:
    """Whether this process serves, which its loop's thread sets, and whether that loop answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_serving = False

    def trouble(self, *, readiness: bool) -> str | None:
        """Return what is wrong, None if all is well. Waits for the loop; for the threads of the HTTP port."""
        if not self.loop.is_running():
            return "the event loop has ended"
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(ANSWER_S)
        except FutureTimeoutError:
            return f"the event loop has not answered for {ANSWER_S:g} s"
        return "starting, draining or stopping" if readiness and not self.is_serving else None


def serve_http(
    health: Health,
    metrics: Callable[[], str],
    host: str,
    port: int,
    pages: Mapping[str, Page] = {},
    *,
    reuse_port: bool = False,
) -> None:
    """Serve from a daemon thread, and each request from one of its own.

    Args:
        health: of this process.
        metrics: returns what Prometheus reads. Called on threads of the HTTP port.
        host: address to listen at.
        port: to listen at.
        pages: more of them, by path.
        reuse_port: whether the parent process holds the port.

    Raises:
        OSError: the port cannot be bound.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

    class Server(_Server):
        address_family = family
        allow_reuse_port = reuse_port

    routes = {**_routes(metrics, health), **pages}
    server = make_server(host, port, application(routes), Server, _Quiet)
    threading.Thread(target=server.serve_forever, name="reducer-http", daemon=True).start()


def _routes(metrics: Callable[[], str], health: Health) -> dict[str, Page]:
    """Return what answers at each path. Pages are called on threads of the HTTP port."""
    return {
        "/livez": lambda: _probe(health, readiness=False),
        "/readyz": lambda: _probe(health, readiness=True),
        "/metrics": lambda: _metrics(metrics),
    }


def _metrics(metrics: Callable[[], str]) -> Answer:
    try:
        return Answer(metrics(), CONTENT_TYPE_PLAIN_0_0_4)
    except FutureTimeoutError:
        text = f"the event loop has not answered for {ANSWER_S:g} s\n"
        return Answer(text, status=HTTPStatus.SERVICE_UNAVAILABLE)


def _probe(health: Health, *, readiness: bool) -> Answer:
    trouble = health.trouble(readiness=readiness)
    return Answer(
        f"{trouble or 'ok'}\n", status=HTTPStatus.OK if trouble is None else HTTPStatus.SERVICE_UNAVAILABLE
    )


def application(routes: Mapping[str, Page]) -> WSGIApplication:
    """Return what answers requests for these paths, and 404 with a list of them for others."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = routes.get(environ["PATH_INFO"])
        if page is None:
            found = Answer(f"there are {', '.join(routes)}\n", status=HTTPStatus.NOT_FOUND)
        else:
            found = page()
        data = found.text.encode()
        headers = [("Content-Type", found.content_type), ("Content-Length", str(len(data))), *found.headers]
        start_response(f"{found.status.value} {found.status.phrase}", headers)
        return [data]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a probe comes every few seconds."""

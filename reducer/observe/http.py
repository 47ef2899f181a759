"""The HTTP port of a reducer process, --metrics-port.

/livez    200 while the event loop answers
/readyz   200 from the ready line on until the process drains or stops
/metrics  for Prometheus; so is every other path

The names and codes are those of Kubernetes (https://kubernetes.io/docs/reference/using-api/health-checks/).
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from reducer.engine import Engine
from reducer.observe.metrics import ANSWER_S, EngineCollector

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


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


def serve_http(engine: Engine, health: Health, host: str, port: int) -> None:
    """Serve from a daemon thread, and each request from one of its own.

    Raises:
        OSError: the port cannot be bound.
    """
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, health.loop))
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

    class Server(_Server):
        address_family = family

    server = make_server(host, port, _application(make_wsgi_app(registry), health), Server, _Quiet)
    threading.Thread(target=server.serve_forever, name="reducer-http", daemon=True).start()


def _application(metrics: WSGIApplication, health: Health) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path not in ("/livez", "/readyz"):
            return metrics(environ, start_response)
        trouble = health.trouble(readiness=path == "/readyz")
        status = "200 OK" if trouble is None else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{trouble or 'ok'}\n".encode()]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a probe comes every few seconds."""

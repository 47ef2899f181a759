"""Contents of a reducer process's HTTP port, --metrics-port.

/livez    200 while the event loop answers
/readyz   200 from the ready line until the process drains or stops
/metrics  for Prometheus
/         with --page: the view of `reducer top` (`reducer/observe/page/routes.py`)

The first two use the names and codes of Kubernetes
(https://kubernetes.io/docs/reference/using-api/health-checks/).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from reduction.blocking import begin

from reducer.observe.metrics import ANSWER_S
from reducer.transports.http_server import Answer, HttpPort, Request, Respond

#: Returns the answer to a request without blocking.
Page = Callable[[], Answer]
#: Allows every name.
ANY = "*"


class Health:
    """Health of this process: whether it serves, set by its loop's thread, and whether that loop answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_serving = False

    async def trouble(self, *, readiness: bool) -> str | None:
        """Return the problem, or None. Waits for the loop, so call it on another loop."""
        if not self.loop.is_running():
            return "the event loop has ended"
        answered = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(answered), ANSWER_S)
        except TimeoutError:
            return _late()
        return "starting, draining or stopping" if readiness and not self.is_serving else None


class Metrics:
    """Metrics that are produced on one thread for all concurrent requests."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._making: asyncio.Future[str] | None = None

    async def answer(self) -> Answer:
        """Return the metrics for Prometheus."""
        if self._making is None or self._making.done():
            self._making = asyncio.wrap_future(begin(self._text))
        try:
            return Answer(await asyncio.shield(self._making), CONTENT_TYPE_PLAIN_0_0_4)
        except TimeoutError:
            return Answer(f"{_late()}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


class HostNames:
    """The names by which browsers may address this host.

    A foreign site may make its name resolve to our address, and its page could then read our answers (DNS
    rebinding). An attacker who can do that owns a name with a dot.

    Args:
        names: names in addition to those that the system knows; ANY allows all.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {name.lower() for name in (*names, socket.gethostname())}
        # A name server may take a long time.
        begin(socket.getfqdn).add_done_callback(lambda found: self._names.add(found.result().lower()))

    def allow(self, host: str) -> bool:
        """Return whether the Host of a request is an IP address, a name without a dot, or one of our names."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return "." not in name or _is_ip(name) or not self._names.isdisjoint((name, ANY))


def serve_http(
    health: Health,
    metrics: Callable[[], str],
    listeners: Sequence[socket.socket],
    pages: Mapping[str, Page] = {},
    names: Sequence[str] = (),
) -> None:
    """Serve from a daemon thread.

    Args:
        health: health of this process.
        metrics: returns the metrics for Prometheus. Called on another thread.
        listeners: listening sockets.
        pages: pages for browsers, by path.
        names: additional names by which browsers may address this host.
    """
    HttpPort(listeners, application(health, metrics, pages, HostNames(names).allow)).start()


def application(
    health: Health,
    metrics: Callable[[], str],
    pages: Mapping[str, Page] = {},
    allow: Callable[[str], bool] = lambda _: True,
) -> Respond:
    """Return the function that answers requests. Unknown paths get 404 with a list of the known ones.

    Probes and Prometheus may use any name of this host. Pages are only served for names accepted by `allow`.
    """
    scrapes = Metrics(metrics)
    routes: dict[str, Callable[[], Awaitable[Answer]]] = {
        "/livez": lambda: _probe(health, readiness=False),
        "/readyz": lambda: _probe(health, readiness=True),
        "/metrics": scrapes.answer,
    }

    async def respond(request: Request) -> Answer:
        if (page := pages.get(request.path)) is not None:
            return page() if allow(request.host) else _MISDIRECTED
        if (route := routes.get(request.path)) is not None:
            return await route()
        return Answer(f"available: {', '.join((*routes, *pages))}\n", status=HTTPStatus.NOT_FOUND)

    return respond


_MISDIRECTED = Answer(
    "that is not a known name of this host: use its IP address, or start the reducer with --page-hosts NAME\n",
    status=HTTPStatus.MISDIRECTED_REQUEST,
)


async def _probe(health: Health, *, readiness: bool) -> Answer:
    trouble = await health.trouble(readiness=readiness)
    return Answer(
        f"{trouble or 'ok'}\n", status=HTTPStatus.OK if trouble is None else HTTPStatus.SERVICE_UNAVAILABLE
    )


def _late() -> str:
    return f"the event loop has not answered for {ANSWER_S:g} s"


def _is_ip(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False

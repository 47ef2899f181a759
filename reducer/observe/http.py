"""What is on the HTTP port of a reducer process, --metrics-port.

/livez    200 while the event loop answers
/readyz   200 from the ready line on until the process drains or stops
/metrics  for Prometheus
/         with --page: what `reducer top` shows (`reducer/observe/page/routes.py`)

The names and codes of the first two are those of Kubernetes
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

#: Makes the answer to each request, without blocking.
Page = Callable[[], Answer]
#: Allows every name.
ANY = "*"


class Health:
    """Whether this process serves, which its loop's thread sets, and whether that loop answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_serving = False

    async def trouble(self, *, readiness: bool) -> str | None:
        """Return what is wrong, None if all is well. Waits for the loop; to be called on another one."""
        if not self.loop.is_running():
            return "the event loop has ended"
        answered = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(answered), ANSWER_S)
        except TimeoutError:
            return _late()
        return "starting, draining or stopping" if readiness and not self.is_serving else None


class Metrics:
    """Makes metrics on one thread, for all who ask meanwhile."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._making: asyncio.Future[str] | None = None

    async def answer(self) -> Answer:
        """Return what Prometheus reads."""
        if self._making is None or self._making.done():
            self._making = asyncio.wrap_future(begin(self._text))
        try:
            return Answer(await asyncio.shield(self._making), CONTENT_TYPE_PLAIN_0_0_4)
        except TimeoutError:
            return Answer(f"{_late()}\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


class HostNames:
    """The names by which browsers may call this host.

    A page of somebody else's site may have its name resolve to our address, and would then be allowed to read what
    we answer (DNS rebinding). Whoever can do that owns a name with a dot.

    Args:
        names: beside those that the system knows; ANY allows all.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {name.lower() for name in (*names, socket.gethostname())}
        # A name server may take long.
        begin(socket.getfqdn).add_done_callback(lambda found: self._names.add(found.result().lower()))

    def allow(self, host: str) -> bool:
        """Whether the Host of a request is an IP address, a name without a dot, or one of ours."""
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
        health: of this process.
        metrics: returns what Prometheus reads. Called on another thread.
        listeners: sockets that listen.
        pages: what browsers read, by path.
        names: of this host, beside those that the system knows, by which they may call it.
    """
    HttpPort(listeners, application(health, metrics, pages, HostNames(names).allow)).start()


def application(
    health: Health,
    metrics: Callable[[], str],
    pages: Mapping[str, Page] = {},
    allow: Callable[[str], bool] = lambda _: True,
) -> Respond:
    """Return what answers requests; those for other paths get 404 with a list of what there is.

    Probes and Prometheus may use any name of this host, browsers of a page only those that `allow` returns True for.
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
        return Answer(f"there are {', '.join((*routes, *pages))}\n", status=HTTPStatus.NOT_FOUND)

    return respond


_MISDIRECTED = Answer(
    "this host does not know itself by that name: use its IP address, or start the reducer with --page-hosts NAME\n",
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

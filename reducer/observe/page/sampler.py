"""Poll all processes of this `reducer serve` for the page and its timeline.

The cost does not depend on the number of browsers, because they all get the latest answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any

from reduction import __version__
from reduction.model import ReducerStatus

from reducer.engine import Engine
from reducer.observe.live.history import History
from reducer.observe.live.view import View, Watcher
from reducer.observe.metrics import ANSWER_S
from reducer.observe.status import StatusAccess, look
from reducer.observe.summary import Process
from reducer.transports.http_server import Answer

log = logging.getLogger(__name__)

#: Incremented when a key of the answer changes its meaning or is removed, but not for new keys.
SCHEMA = 1
#: Pause between two looks, in seconds.
SAMPLE_S = 2.0
#: Timeout for a sibling's answer, in seconds.
SIBLING_S = 2.0
#: Maximum jobs and events in one answer.
JOBS_MAX, EVENTS_MAX = 50, 60
JSON = "application/json"


class Sampler:
    """Producer of the answer of /api/status."""

    def __init__(self) -> None:
        self._watcher = Watcher()
        self._history = History()
        self._text = ""
        #: Whether the last look failed, so that its error is logged once.
        self._has_failed = False

    def start(self, look: Callable[[], Sequence[Process]]) -> None:
        """Start polling on a daemon thread. `look` returns the answers of all processes."""
        threading.Thread(target=self._run, args=(look,), name="reducer-page", daemon=True).start()

    def take(self, processes: Sequence[Process]) -> None:
        """Produce the answer for a look."""
        view = self._watcher.take(processes, time.time())
        self._history.take(view)
        self._text = json.dumps(to_json(view, self._history), separators=(",", ":"))

    def answer(self) -> Answer:
        """Return the latest answer. Call it from any thread."""
        if not self._text:
            text = json.dumps({"schema": SCHEMA, "error": "this reducer has just started"})
            return Answer(text, JSON, HTTPStatus.SERVICE_UNAVAILABLE)
        return Answer(self._text, JSON)

    def _run(self, look: Callable[[], Sequence[Process]]) -> None:
        while True:
            try:
                self.take(look())
                self._has_failed = False
            except Exception:
                if not self._has_failed:
                    log.exception(
                        "cannot get the status of the processes for the page, which shows the previous one"
                    )
                self._has_failed = True
            time.sleep(SAMPLE_S)


def to_json(view: View, history: History) -> dict[str, Any]:
    """Return the page's data. Names are as peers wrote them, and must be escaped for display."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "at_s": view.at_s,
        "every_s": SAMPLE_S,
        "hosts": [asdict(host) for host in view.hosts],
        "jobs": [asdict(job) for job in view.jobs[:JOBS_MAX]],
        "jobs_left_out": max(0, len(view.jobs) - JOBS_MAX),
        "events": [asdict(entry) for entry in view.events[-EVENTS_MAX:]],
        "timeline": history.to_json(),
    }


def look_at_all(
    engine: Engine,
    loop: asyncio.AbstractEventLoop,
    address: str,
    siblings: Sequence[str],
    access: StatusAccess,
) -> list[Process]:
    """Return the answers of this process and of its siblings.

    Args:
        engine: engine of this process.
        loop: loop of the engine. This function waits for it, so it must be called on another thread.
        address: address of this process.
        siblings: addresses of the other processes.
        access: credentials for the siblings.
    """
    own = _own(engine, loop)
    if isinstance(own, str):
        first = Process(address, None, own)
    else:
        ports = tuple(int(sibling.rpartition(":")[2]) for sibling in siblings)
        first = Process(address, replace(own, siblings=ports))
    # Siblings belong to the first process's rows, whatever name it has; see `groups`.
    host = address.rpartition(":")[0]
    others = look(siblings, SIBLING_S, access)
    return [
        first,
        *(replace(other, address=f"{host}:{other.address.rpartition(':')[2]}") for other in others),
    ]


def _own(engine: Engine, loop: asyncio.AbstractEventLoop) -> ReducerStatus | str:
    """Return the status of this process, or the reason why there is none."""
    if not loop.is_running():
        return "the event loop has ended"

    async def status() -> ReducerStatus:
        return engine.status()

    try:
        return asyncio.run_coroutine_threadsafe(status(), loop).result(ANSWER_S)
    except FutureTimeoutError:
        return f"the event loop has not answered for {ANSWER_S:g} s"

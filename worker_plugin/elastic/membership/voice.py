"""One worker's statements in the lobby, and what it hears there from the others."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

from reduction.errors import ReductionError
from reduction.log_limit import LINES

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import meeting_point
from worker_plugin.elastic.membership.entries import Said, merge
from worker_plugin.transports.lobby_client import LobbyClient

log = logging.getLogger(__name__)


class Voice:
    """This worker's place in the lobby of its job. For any thread.

    Args:
        config: with the job's name and its reducers.
        own: the worker's first statement.
        on_news: called on the I/O thread when others may have said something.

    Raises:
        ConfigError: the settings do not give access to the reducers.
        ReducerUnavailable: a name cannot be resolved.
    """

    def __init__(self, config: PluginConfig, own: Said, on_news: Callable[[], None]) -> None:
        assert config.job is not None  # there is no store through which to agree on one
        where = meeting_point.choose(config, {})
        self._lock = threading.Lock()
        self.own = own
        nonce = bytes.fromhex(own.worker.nonce)
        self._lobby = LobbyClient(where.addresses, where.access, config.job, nonce, on_news)

    def say(self, **changes: Any) -> None:
        """Repeat the last statement with these changes from now on; see `Said`."""
        with self._lock:
            self.own = dataclasses.replace(self.own, **changes, count=self.own.count + 1)
            self._lobby.say(self.own.to_entry())

    def others(self) -> dict[str, Said]:
        """Return the last statement of every other worker, by nonce."""
        heard, faults = merge(self._lobby.heard())
        for fault in faults:
            LINES.log(log, logging.WARNING, "lobby entry", "", "rank %d: %s", self.own.worker.rank, fault)
        return {nonce: said for nonce, said in heard.items() if nonce != self.own.worker.nonce}

    @property
    def hears(self) -> bool:
        """Whether a reachable reducer has reported which workers are present."""
        return bool(self._lobby.heard())

    def why_unheard(self) -> ReductionError | None:
        """See `LobbyClient.why_unheard`."""
        return self._lobby.why_unheard()

    def close(self) -> None:
        """Leave the lobby once everything is sent; do not wait for that."""
        self._lobby.close()

    def wait_closed(self) -> None:
        """Wait until this worker has left the lobby, at most LEAVE_S."""
        self._lobby.wait_closed()

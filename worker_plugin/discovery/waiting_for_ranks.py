"""Waiting for ranks through a store: how long, how often to poll, and when to warn the user."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from reduction.errors import PeerLeft, WorkersMissing
from torch.distributed.distributed_c10d import Store

from worker_plugin.config import PluginConfig
from worker_plugin.core.words import ADVICE
from worker_plugin.discovery.bounded_store import WARN_INTERVALS, BoundedStore

log = logging.getLogger(__name__)

#: Pause before the store is polled again, in seconds.
PAUSE_MIN_S = 0.01
#: Each further pause is longer by this factor.
PAUSE_GROWTH = 1.5
#: Maximum pause, in seconds.
PAUSE_MAX_S = 0.5


class Discovery(threading.Thread):
    """A thread that waits for ranks. Its owner may make it give up."""

    #: No wait of this thread lasts longer than this, by `time.monotonic`.
    give_up_at = math.inf


def wait_for(
    store: BoundedStore, look: Callable[[Store], str], config: PluginConfig, *, extra_s: float = 0.0
) -> None:
    """Return when no rank is missing. `look` polls the store, and returns the missing ranks as a string.

    Logs a warning after `stall_warn_s`, and again from time to time.

    Raises:
        WorkersMissing: a rank did not join within `timeout_s` plus `extra_s`.
        PeerLeft: the owner of this thread, a `Discovery`, has stopped waiting.
        WorkerLost: see `BoundedStore.ask`.
    """
    timeout_s = config.timeout_s
    started_at = time.monotonic()
    warn_at, pause_s = started_at + config.stall_warn_s, PAUSE_MIN_S
    while True:
        missing = store.ask(look)
        if not missing:
            return
        now = time.monotonic()
        if isinstance(thread := threading.current_thread(), Discovery) and now >= thread.give_up_at:
            raise PeerLeft(f"a rank was aborted before {missing} had joined")
        if now >= started_at + timeout_s + extra_s:
            raise WorkersMissing(f"{missing} did not join within {timeout_s:g} s (timeout_s): {ADVICE}")
        if now >= warn_at:
            warn_at = now + WARN_INTERVALS * config.stall_warn_s
            left = started_at + timeout_s - now
            text = "waiting for %s to issue its first collective; giving up in %.0f s; %s"
            log.warning(text, missing, left, ADVICE)
        time.sleep(min(pause_s, started_at + timeout_s + extra_s - now))
        pause_s = min(pause_s * PAUSE_GROWTH, PAUSE_MAX_S)

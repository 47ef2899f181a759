"""Waiting for ranks through a store: how long, how often it is looked for them, and when the user hears of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from reduction.errors import WorkerLost, WorkersMissing

from worker_plugin.config import PluginConfig
from worker_plugin.core.words import ADVICE

log = logging.getLogger(__name__)

#: Pauses between two looks, in seconds: from the first one on each is so many times the one before, up to the last.
FIRST_LOOK_S, LAST_LOOK_S, SLOWER = 0.01, 0.5, 1.5
#: The second and every later warning comes after so many times `stall_warn_s`.
PAUSES = 3


def wait_for(look: Callable[[], str], config: PluginConfig, *, extra_s: float = 0.0) -> None:
    """Call `look` until it returns "". It asks a store, and returns whom it misses, as a text.

    Warns when `stall_warn_s` have passed, and again from time to time. `extra_s` is time beyond `timeout_s`.

    Raises:
        WorkersMissing: somebody did not come within `timeout_s`.
        WorkerLost: the store does not answer any more; the process that serves it has ended.
    """
    timeout_s = config.timeout_s
    started_at = time.monotonic()
    warn_at, pause_s = started_at + config.stall_warn_s, FIRST_LOOK_S
    while True:
        try:
            missing = look()
        except RuntimeError as error:  # also of torch's DistNetworkError
            reason = str(error).partition("\n")[0]
            raise WorkerLost(f"the store of torch.distributed does not answer any more: {reason}") from None
        if not missing:
            return
        now = time.monotonic()
        if now >= started_at + timeout_s + extra_s:
            raise WorkersMissing(f"{missing} did not come within {timeout_s:g} s (timeout_s): {ADVICE}")
        if now >= warn_at:
            warn_at = now + PAUSES * config.stall_warn_s
            left = started_at + timeout_s - now
            log.warning("waiting for %s to issue its first collective; giving up in %.0f s", missing, left)
        time.sleep(min(pause_s, started_at + timeout_s + extra_s - now))
        pause_s = min(pause_s * SLOWER, LAST_LOOK_S)

"""Requests to stop this process, by SIGTERM or by a notice from its cloud."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from reduction.errors import ConfigError

from worker_plugin.process.notices import watch

#: Set once this process has received SIGTERM, or its machine a notice.
_asked = threading.Event()
_is_armed = False


def arm(notices: str | None = None) -> None:
    """Make SIGTERM a request to stop instead of ending this process; an existing handler is called too.

    Args:
        notices: the cloud whose notices count as requests too; see `notices.watch`.

    Raises:
        ConfigError: not on the main thread, where Python allows no handler.
    """
    global _is_armed
    if _is_armed:
        return
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "state.should_stop() and should_leave() install a handler of SIGTERM: call them first on the main thread"
        )
    before = signal.getsignal(signal.SIGTERM)

    def ask(number: int, frame: FrameType | None) -> None:
        _asked.set()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, ask)
    _is_armed = True
    if notices is not None:
        watch(notices, _asked.set)


def is_asked(notices: str | None = None) -> bool:
    """Return whether this process was asked to stop; see `arm`.

    Raises:
        ConfigError: the first call is not on the main thread.
    """
    arm(notices)
    return _asked.is_set()

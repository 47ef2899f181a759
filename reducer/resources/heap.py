"""Return freed memory from the C library to the system.

glibc has an arena for nearly every thread, and keeps freed memory in each of them. After floods of
refused frames a reducer permanently kept 1.5 GiB. With two arenas that are trimmed shortly after streams
end, it kept 4 to 6 MiB. C libraries without these functions (musl, macOS) are left alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: One arena is for the loop's thread and one for gRPC's threads. With glibc's default number of arenas,
#: 8 MiB of each could not be returned.
ARENAS_MAX = 2
#: How long to wait for more memory to be freed, in seconds. Memory is returned at most this often.
DELAY_S = 2.0

_M_ARENA_MAX = -8  # malloc.h


def _function(name: str) -> Callable[..., Any] | None:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # some systems do not let a process load itself
        return None


def use_few_arenas() -> None:
    """Limit glibc's arenas unless the user did. Call this while the process has one thread."""
    mallopt = _function("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


class Heap:
    """The C library's heap. Use it on the loop's thread."""

    def __init__(self) -> None:
        self._trim: Callable[[int], Any] | None = _function("malloc_trim")
        self._timer: asyncio.TimerHandle | None = None

    def give_back_soon(self) -> None:
        """Return the free memory to the system in DELAY_S."""
        if self._trim is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self._give_back)

    def _give_back(self) -> None:
        self._timer = None
        assert self._trim is not None
        # This runs outside the loop because it takes milliseconds. Pages that a job still needs
        # come back by page faults.
        with suppress(RuntimeError):  # no thread can be started; a later call retries
            asyncio.get_running_loop().run_in_executor(None, self._trim, 0)

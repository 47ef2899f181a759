"""Memory that was freed goes back to the system, and does not stay with the C library.

glibc has an arena for nearly every thread, and keeps what was freed in each of them: after floods
of frames that were refused, and freed, a reducer had 1.5 GiB of that for good. With two arenas,
which give back what they have a moment after streams ended, 4 to 6 MiB remained. Where there is no
such function (musl, macOS) nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Any

#: One for the loop's thread, one for those of gRPC. With as many as glibc likes, 8 MiB of each
#: could not be given back.
ARENAS_MAX = 2
#: How long to wait for more to be freed, in seconds: memory is given back so often at most.
DELAY_S = 2.0

_M_ARENA_MAX = -8  # malloc.h


def _function(name: str) -> Callable[..., Any] | None:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # a system where a process cannot look into itself
        return None


def use_few_arenas() -> None:
    """Bound glibc's arenas, unless the user did; for the start of a process that has one thread yet."""
    mallopt = _function("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


class Heap:
    """The C library's heap. One thread: the loop's."""

    def __init__(self) -> None:
        self._trim: Callable[[int], Any] | None = _function("malloc_trim")
        self._timer: asyncio.TimerHandle | None = None

    def give_back_soon(self) -> None:
        """Give back, in DELAY_S, what is free then."""
        if self._trim is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self._give_back)

    def _give_back(self) -> None:
        self._timer = None
        assert self._trim is not None
        # Beside the loop: it takes milliseconds, and what a job needs of it comes back by page
        # faults.
        asyncio.get_running_loop().run_in_executor(None, self._trim, 0)

"""The one event loop of this process's communicators, on a thread of its own.

One for all and never closed: grpc.aio keeps every loop that ever used it, and calls into it late, so a loop of
each communicator's own would have to stay open as well.
"""

from __future__ import annotations

import asyncio
import os
import threading

import uvloop

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop; the first call of a process starts it. Any thread."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = uvloop.new_event_loop()
            threading.Thread(target=_run, args=(_loop,), name="reduction-io", daemon=True).start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _forget() -> None:
    """A forked child has the parent's loop, but not its thread."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)

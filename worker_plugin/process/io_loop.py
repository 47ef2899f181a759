"""The one event loop of this process's communicators, on a thread of its own.

One for all and never closed: grpc.aio keeps every loop that ever used it, and calls into it late, so a loop of
each communicator's own would have to stay open as well.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading

import uvloop

#: How long the end of the process waits for the loop to stop, in seconds.
STOP_S = 2.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop; the first call of a process starts it. Any thread."""
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = uvloop.new_event_loop()
            _thread = threading.Thread(target=_run, args=(_loop,), name="reduction-io", daemon=True)
            _thread.start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _forget() -> None:
    """A forked child has the parent's loop, but not its thread."""
    global _lock, _loop, _thread
    _lock, _loop, _thread = threading.Lock(), None, None


def _stop() -> None:
    """Let the loop rest before the interpreter is gone: a timer or socket that wakes it then crashes the process."""
    if _loop is not None and _thread is not None:
        _loop.call_soon_threadsafe(_loop.stop)
        _thread.join(STOP_S)


os.register_at_fork(after_in_child=_forget)
atexit.register(_stop)  # at import, so that it runs after what states register when they are used

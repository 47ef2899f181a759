"""The event loop that all communicators of this process share, on a thread of its own.

It is never closed. grpc.aio keeps every loop that ever used it and calls into it late, so if each
communicator had a loop of its own, that loop would have to stay open as well.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading

import uvloop

#: The end of the process waits this long for the loop to stop, in seconds.
STOP_S = 2.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop; the first call of a process starts it. Any thread.

    Raises:
        RuntimeError: there can be no more threads.
    """
    global _loop, _thread
    with _lock:
        if _loop is None:
            loop = uvloop.new_event_loop()
            thread = threading.Thread(target=_run, args=(loop,), name="reduction-io", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a loop that no thread runs would keep everybody waiting
                loop.close()
                raise
            _loop, _thread = loop, thread
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _forget() -> None:
    """Forget the parent's loop, because a forked child has no copy of the thread that runs it."""
    global _lock, _loop, _thread
    _lock, _loop, _thread = threading.Lock(), None, None


def _stop() -> None:
    """Stop the loop before the interpreter is gone: waking it up later would crash the process."""
    if _loop is not None and _thread is not None:
        _loop.call_soon_threadsafe(_loop.stop)
        _thread.join(STOP_S)


os.register_at_fork(after_in_child=_forget)
# At import, so that it runs after the functions that at_exit.py registers when a state is used.
atexit.register(_stop)

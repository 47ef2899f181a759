"""The event loop shared by all communicators of this process, on its own thread.

It is never closed. grpc.aio keeps every loop that ever used it and calls into it late. So if each communicator
had its own loop, that loop would have to stay open as well.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading

import uvloop

#: How long process exit waits for the loop to stop, in seconds.
STOP_S = 2.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop, which the first call in a process starts. For any thread.

    Raises:
        RuntimeError: no more threads can be created.
    """
    global _loop, _thread
    with _lock:
        if _loop is None:
            loop = uvloop.new_event_loop()
            thread = threading.Thread(target=_run, args=(loop,), name="reduction-io", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # callers would wait forever for a loop that no thread runs
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
    """Stop the loop before the interpreter is gone, because waking it up later would crash the process."""
    if _loop is not None and _thread is not None:
        _loop.call_soon_threadsafe(_loop.stop)
        _thread.join(STOP_S)


os.register_at_fork(after_in_child=_forget)
# Registered at import, so that it runs after the functions that at_exit.py registers when a state is used.
atexit.register(_stop)

"""Closes the communicators that are still open when a process ends, including those of dropped states.

This is more than a courtesy to the other ranks. A staging thread keeps returning from C++, and an interpreter
that is shutting down stops such a thread in a way that makes C++ call abort().

An ordinary interpreter waits for all non-daemon threads, and then runs the functions registered with `atexit`.
A child that multiprocessing has forked ends with os._exit instead: it first runs the finalizers of
`multiprocessing.util.Finalize`, and then waits for the same threads. There a finalizer starts a non-daemon
thread, which waits for all other non-daemon threads, and then closes the communicators.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import util
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """Something that can be closed in two steps, so that several of them close in parallel."""

    def begin_close(self) -> None:
        """Close it cleanly, in the background."""

    def close(self) -> None:
        """Close it cleanly, and wait until that is done."""


_T = TypeVar("_T", bound=Closable)


class ClosedAtExit(Generic[_T]):
    """A set of objects of this process that are closed together when the process ends.

    The most recently created of several such sets is closed first. An object without other references drops out.
    """

    def __init__(self) -> None:
        self._members: weakref.WeakSet[_T] = weakref.WeakSet()
        # Not registered at import, because functions registered last run first, and closing needs the I/O loop, which
        # io_loop.py stops at exit.
        if not _all_sets:
            atexit.register(_close_all)
        _all_sets.append(self)

    def add(self, member: _T) -> None:
        """Have it closed when the process ends."""
        global _has_finalizer
        self._members.add(member)
        if not _has_finalizer and multiprocessing.parent_process() is not None:
            _has_finalizer = True
            # Finalizers registered while finalizers run are never called. In that case a thread added this member, and
            # that thread continues in the meantime.
            if util.is_exiting():
                _close_in_child()
            else:
                util.Finalize(None, _close_in_child, exitpriority=0)

    def __iter__(self) -> Iterator[_T]:
        """Iterate over the current members."""
        return iter(list(self._members))

    def close_all(self) -> None:
        """Close all members, and wait until that is done. Idempotent, because their `close` is."""
        members = list(self._members)
        for member in members:
            member.begin_close()
        for member in members:
            member.close()

    def clear(self) -> None:
        """Forget all members."""
        self._members.clear()


_all_sets: list[ClosedAtExit[Any]] = []
#: Whether this process is a child of multiprocessing that will call `_close_in_child`.
_has_finalizer = False


def _close_all() -> None:
    for members in reversed(_all_sets):
        members.close_all()


def _close_in_child() -> None:
    threading.Thread(target=_close_after_other_threads, name="reduction-leaving", daemon=False).start()


def _close_after_other_threads() -> None:
    for thread in threading.enumerate():
        if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread()):
            thread.join()
    _close_all()


def _forget() -> None:
    """Forget the parent's communicators, which a forked child must not close, and its finalizer."""
    global _has_finalizer
    _has_finalizer = False
    for members in _all_sets:
        members.clear()


os.register_at_fork(after_in_child=_forget)

"""Communicators that are open when a process ends leave in good order, with states that were dropped as well.

Not only for the others' sake: the interpreter ends a thread that comes back from C++, as the staging thread does all
the time, in a way that C++ answers with abort().

An interpreter that ends waits for all threads but daemons, and then does what `atexit` knows. A child that
multiprocessing has forked ends with os._exit instead: it does what `multiprocessing.util.Finalize` knows, and waits for
those threads. So there a thread that is no daemon waits for the others of its kind, and then lets everything leave.
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


class Leaver(Protocol):
    """Something that can leave."""

    def begin_close(self) -> None:
        """Let it leave in good order, in the background."""

    def close(self) -> None:
        """Leave in good order, and wait for that."""


_T = TypeVar("_T", bound=Leaver)


class Leavers(Generic[_T]):
    """Members of this process that leave at its end, together. Of several such sets, the one made last leaves first."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[_T] = weakref.WeakSet()
        if not _all:  # now, not at import: what is registered last runs first, and needs the I/O loop
            atexit.register(_leave)
        _all.append(self)

    def add(self, member: _T) -> None:
        """Have it leave at the end, if it is still there."""
        global _is_child_known
        self._members.add(member)
        if not _is_child_known and multiprocessing.parent_process() is not None:
            _is_child_known = True
            if util.is_exiting():  # it comes from such a thread, which goes on
                _leave_in_child()
            else:
                util.Finalize(None, _leave_in_child, exitpriority=0)

    def __iter__(self) -> Iterator[_T]:
        """Return those that are there now."""
        return iter(list(self._members))

    def leave(self) -> None:
        """Let all leave, and wait for them; once more does nothing."""
        remaining = list(self._members)
        for member in remaining:
            member.begin_close()
        for member in remaining:
            member.close()

    def clear(self) -> None:
        """Forget them."""
        self._members.clear()


_all: list[Leavers[Any]] = []
#: Whether a child of multiprocessing will call `_leave_in_child`.
_is_child_known = False


def _leave() -> None:
    for leavers in reversed(_all):
        leavers.leave()


def _leave_in_child() -> None:
    threading.Thread(target=_leave_after_others, name="reduction-leaving", daemon=False).start()


def _leave_after_others() -> None:
    for thread in threading.enumerate():
        if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread()):
            thread.join()
    _leave()


def _forget() -> None:
    """A forked child has copies of the parent's communicators, which are not its own, and no finalizer yet."""
    global _is_child_known
    _is_child_known = False
    for leavers in _all:
        leavers.clear()


os.register_at_fork(after_in_child=_forget)

"""Communicators that are open when the interpreter ends leave in good order, with states that were dropped as well.

Not only for the others' sake: the interpreter ends a thread that comes back from C++, as the staging thread does all
the time, in a way that C++ answers with abort().
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol, TypeVar


class Leaver(Protocol):
    """Something that can leave."""

    def begin_close(self) -> None:
        """Let it leave in good order, in the background."""

    def close(self) -> None:
        """Leave in good order, and wait for that."""


_T = TypeVar("_T", bound=Leaver)


def leaving_at_exit() -> weakref.WeakSet[_T]:
    """Return a set whose members of this process leave at exit, together; what was asked for last, first."""
    members: weakref.WeakSet[_T] = weakref.WeakSet()

    def leave() -> None:
        remaining = list(members)
        for member in remaining:
            member.begin_close()
        for member in remaining:
            member.close()

    atexit.register(leave)
    os.register_at_fork(after_in_child=members.clear)
    return members

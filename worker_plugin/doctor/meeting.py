"""Where the ranks of a doctor tell each other what they have found, and learn who is missing.

It is the store of the launcher. The ranks do not use collectives for it, because those would only say
that somebody is missing.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store

#: How often a key is asked for that is not there, in seconds.
_ASK_S = 0.05


class MeetingFailed(Exception):
    """A rank did not come to a meeting in time, or came with an error. The text names it."""


class Meeting:
    """The ranks of one run. All of them come to the same meetings in the same order."""

    def __init__(self, store: Store, rank: int, ranks: int, host: str) -> None:
        self.rank = rank
        self.ranks = ranks
        self._store = store
        self._count = 0
        self._hosts: dict[int, str] = {rank: host}

    def exchange(self, value: Any, timeout_s: float, what: str) -> list[Any]:
        """Return what every rank has brought, by rank; `value` is ours, anything that JSON knows.

        Raises:
            MeetingFailed: a rank did not come within `timeout_s`, or came with an error.
        """
        self._count += 1
        self._store.set(self._key(self.rank), json.dumps([None, value]))
        deadline = time.monotonic() + timeout_s
        values = {rank: self._get(rank, deadline) for rank in range(self.ranks)}
        missing = [rank for rank, found in values.items() if found is None]
        if missing:
            names = ", ".join(self._name(rank) for rank in missing)
            verb = "has" if len(missing) == 1 else "have"
            raise MeetingFailed(
                f"{names} {verb} not come to {what} within {timeout_s:g} s: stopped, dead, or never started"
            )
        pairs = [json.loads(values[rank] or b"") for rank in range(self.ranks)]
        for error, _ in pairs:
            if error is not None:
                raise MeetingFailed(error)
        return [value for _, value in pairs]

    def fail(self, error: str) -> None:
        """Let all others know, at the next meeting, why we do not go on; ours is over."""
        self._count += 1
        self._store.set(self._key(self.rank), json.dumps([f"{self._name(self.rank)}: {error}", None]))

    def meet(self, host: str, timeout_s: float) -> None:
        """Learn the hosts of all ranks.

        Raises:
            MeetingFailed: see `exchange`.
        """
        self._hosts |= dict(enumerate(self.exchange(host, timeout_s, "the beginning")))

    def leave(self, timeout_s: float) -> None:
        """Return when all ranks have come to this point, or `timeout_s` are over: the store may be rank 0's."""
        try:
            self.exchange(None, timeout_s, "the end")
        except (MeetingFailed, RuntimeError):  # torch's errors of a store that is gone are RuntimeErrors
            return

    def _key(self, rank: int) -> str:
        return f"doctor/{self._count}/{rank}"

    def _name(self, rank: int) -> str:
        host = self._hosts.get(rank)
        return f"rank {rank}" if host is None else f"rank {rank} ({host})"

    def _get(self, rank: int, deadline: float) -> bytes | None:
        """Return what a rank has brought; None if it does not come in time."""
        while not self._store.check([self._key(rank)]):
            if time.monotonic() > deadline:
                return None
            time.sleep(_ASK_S)
        self._store.set_timeout(timedelta(seconds=10))
        return self._store.get(self._key(rank))

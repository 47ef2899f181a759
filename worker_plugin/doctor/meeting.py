"""Where a doctor's ranks exchange their findings, and learn which ranks are missing.

It uses the launcher's store. The ranks do not use collectives for this, because those would only report that
some rank is missing.
"""

from __future__ import annotations

import contextlib
import json
import time
from datetime import timedelta
from typing import Any

from reduction.text import load_json
from torch.distributed.distributed_c10d import Store

#: Initial and maximum pause before polling for missing values again, in seconds. Polling uses the links that are
#: measured.
_ASK_FIRST_S, _ASK_MOST_S = 0.001, 0.05
#: Time limit in seconds for the store to return what it has.
_ANSWER_S = 10.0


class MeetingFailed(Exception):
    """A rank did not arrive at a meeting in time, or arrived with an error. The text names it."""


class Meeting:
    """The ranks of one run. All of them attend the same meetings in the same order."""

    def __init__(self, store: Store, rank: int, ranks: int, host: str) -> None:
        self.rank = rank
        self.ranks = ranks
        self._store = store
        self._count = 0
        self._hosts: dict[int, str] = {rank: host}

    def exchange(self, value: Any, timeout_s: float, what: str) -> list[Any]:
        """Return every rank's value, by rank; `value` is ours, and can be anything JSON supports.

        Raises:
            MeetingFailed: a rank did not arrive within `timeout_s`, or arrived with an error.
        """
        self._count += 1
        self._store.set(self._key(self.rank), json.dumps([None, value]))
        keys = [self._key(rank) for rank in range(self.ranks)]
        if missing := self._missing(keys, timeout_s):
            names = ", ".join(self._name(rank) for rank in missing)
            verb = "has" if len(missing) == 1 else "have"
            raise MeetingFailed(
                f"{names} {verb} not reached {what} within {timeout_s:g} s: stopped, dead, or never started"
            )
        self._store.set_timeout(timedelta(seconds=_ANSWER_S))
        # All in one call: while the links are measured, a round trip to the store takes tens of milliseconds.
        pairs = [load_json(found) for found in self._store.multi_get(keys)]
        for error, _ in pairs:
            if error is not None:
                raise MeetingFailed(error)
        return [value for _, value in pairs]

    def fail(self, error: str) -> None:
        """Tell all others at the next meeting why this rank does not continue. It attends no further meetings."""
        self._count += 1
        with contextlib.suppress(RuntimeError):  # as in `leave`: rank 0 may be gone
            self._store.set(self._key(self.rank), json.dumps([f"{self._name(self.rank)}: {error}", None]))

    def meet(self, host: str, timeout_s: float) -> None:
        """Learn the hosts of all ranks.

        Raises:
            MeetingFailed: see `exchange`.
        """
        self._hosts |= dict(enumerate(self.exchange(host, timeout_s, "the start")))

    def leave(self, timeout_s: float) -> None:
        """Tell the others that this rank no longer needs them.

        The store may be rank 0's, so rank 0 returns once all ranks have got here, or after `timeout_s`.
        """
        self._count += 1
        with contextlib.suppress(RuntimeError):  # torch's errors of a store that is gone are RuntimeErrors
            self._store.set(self._key(self.rank), "")
            if self.rank == 0:
                self._missing([self._key(rank) for rank in range(self.ranks)], timeout_s)

    def _key(self, rank: int) -> str:
        return f"doctor/{self._count}/{rank}"

    def _name(self, rank: int) -> str:
        host = self._hosts.get(rank)
        return f"rank {rank}" if host is None else f"rank {rank} ({host})"

    def _missing(self, keys: list[str], timeout_s: float) -> list[int]:
        """Wait until the ranks have written these keys, and return the ranks that have not done so in time."""
        deadline, wait_s = time.monotonic() + timeout_s, _ASK_FIRST_S
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                return [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _ASK_MOST_S)
        return []

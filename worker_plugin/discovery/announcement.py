"""The start of a communicator's first epoch, when all ranks and reducers are there: who waits for it, what is said."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from reduction.errors import ReductionError

from worker_plugin.core.words import some_of


class Beginning:
    """Something that happens once or never, for threads that wait for it; the first outcome counts."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._error: ReductionError | None = None

    def succeed(self) -> None:
        """It has happened."""
        self._is_over.set()

    def fail(self, error: ReductionError) -> None:
        """It will not happen any more."""
        if not self._is_over.is_set():
            self._error = error
            self._is_over.set()

    def wait(self) -> None:
        """Return when it has happened.

        Raises:
            ReductionError: what `fail` was called with.
        """
        self._is_over.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)  # or each raise would make it longer


def ranks_text(size: int, nodes: int = 1, label: str = "") -> str:
    """Return how many ranks there are; `label` says which, if they are a part of the job."""
    which = f" ({label})" if label else ""
    where = f" on {nodes} nodes" if nodes > 1 else ""
    return f"{_counted(size, 'rank')}{which}{where}"


def line(job: str, ranks: str, reducers: Sequence[str], planes: Sequence[str], *, is_private: bool) -> str:
    """Return the one line about a communicator that everybody should see."""
    kind = "private reducer" if is_private else "reducer"
    count = _counted(len(reducers), kind)
    return f"reduction-server: job {job}, {ranks}, {count} ({', '.join(some_of(reducers))}), {' and '.join(planes)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"

"""A point in a communicator's life that threads wait for, such as the start of its first epoch."""

from __future__ import annotations

import threading

from reduction.errors import ReductionError


class Milestone:
    """An event that happens once, or never. Its first outcome counts. Any thread."""

    def __init__(self) -> None:
        self._has_outcome = threading.Event()
        self._error: ReductionError | None = None

    def reach(self) -> None:
        """Let all waiting threads go on."""
        self._has_outcome.set()

    def fail(self, error: ReductionError) -> None:
        """Raise an error in all waiting threads."""
        if not self._has_outcome.is_set():
            self._error = error
            self._has_outcome.set()

    def wait(self) -> None:
        """Return when the milestone is reached.

        Raises:
            ReductionError: the error that `fail` was called with.
        """
        self._has_outcome.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)  # or each raise would make it longer

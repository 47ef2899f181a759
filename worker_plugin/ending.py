"""`Ending`: state shared by all threads of a communicator, namely whether it has begun, and the error that ended it."""

from __future__ import annotations

import threading

from reduction.errors import ClosedError, ReductionError

from worker_plugin.tensors.futures import raise_again, without_frames


class Ending:
    """Ends a communicator with its first error, which all later callers get as well. For any thread.

    It calls nothing of its owner, so it may be used with any lock held.
    """

    def __init__(self) -> None:
        #: Also guards what the owner must change together with the end.
        self.lock = threading.RLock()  # a signal handler may close
        #: The error that later collectives raise; set by a failure or by `close`.
        self.final: ReductionError | None = None
        #: The failure. None while all is well, and also after `close`.
        self.error: ReductionError | None = None
        self._has_begun_or_ended = threading.Event()

    def begin(self) -> None:
        """Make `wait` return."""
        self._has_begun_or_ended.set()

    def wait(self) -> None:
        """Return once it has begun.

        Raises:
            ReductionError: it has ended.
        """
        self._has_begun_or_ended.wait()
        self.check()

    def check(self) -> None:
        """Raise the error that ended it, if it has ended."""
        raise_again(self.final)

    def end(self, error: ReductionError) -> bool:
        """End it with an error; return whether this is the first one. Only the first one counts."""
        without_frames(error)  # also if it is the first one, caught again after it was raised again
        with self.lock:
            if self.final is not None:
                return False
            self.final = error
            if not isinstance(error, ClosedError):
                self.error = error
        self._has_begun_or_ended.set()
        return True

"""`Ending`: what all threads of a communicator agree on, that it has begun to work, and what has ended it."""

from __future__ import annotations

import threading

from reduction.errors import ClosedError, ReductionError

from worker_plugin.tensors.futures import raise_again, without_frames


class Ending:
    """The first error ends a communicator, and whoever comes later is told the same one. Any thread.

    It calls nothing of its owner's, so it may be used with any lock held.
    """

    def __init__(self) -> None:
        #: For what the owner must change together with the end.
        self.lock = threading.RLock()  # a signal handler may close
        #: The error that later collectives raise; set by a failure or by `close`.
        self.final: ReductionError | None = None
        #: What has failed. None while all is well, and after `close` too.
        self.error: ReductionError | None = None
        self._has_begun_or_ended = threading.Event()

    def begin(self) -> None:
        """Let `wait` return."""
        self._has_begun_or_ended.set()

    def wait(self) -> None:
        """Return once it has begun.

        Raises:
            ReductionError: it has ended.
        """
        self._has_begun_or_ended.wait()
        self.check()

    def check(self) -> None:
        """Raise the error that has ended it, if it has ended."""
        raise_again(self.final)

    def end(self, error: ReductionError) -> bool:
        """End it with an error; return whether that is the first one, which alone counts."""
        without_frames(error)  # also if it is the first one once more, caught where it was raised again
        with self.lock:
            if self.final is not None:
                return False
            self.final = error
            if not isinstance(error, ClosedError):
                self.error = error
        self._has_begun_or_ended.set()
        return True

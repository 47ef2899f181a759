"""How long a state has a communicator: from its first collective to its end, in the process that created it.

    nothing yet   `open` creates the communicator        open
                  `fail`, and no rank can be told        failed
    open          the communicator ends with an error    failed
                  `close`, `abort`                       closed
                  the state is dropped                   leaves in the background, after its collectives

`error` keeps returning an error that occurred before the end.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

from reduction.errors import ClosedError, ReductionError

from worker_plugin.communicator import ABORTED, CLOSED, Communicator
from worker_plugin.tensors.futures import raise_again


class Lifetime:
    """The lifetime of one communicator. Safe to call from any thread and from a signal handler.

    Only the state may hold a reference to it.
    """

    def __init__(self) -> None:
        #: None before the first collective.
        self.communicator: Communicator | None = None
        #: Called when this object is dropped; keeps the communicator until then.
        self._dropping: weakref.finalize[..., Any] | None = None
        #: Held while the communicator is created, which may take long. `close` and `abort` do not wait for it.
        self._lock = threading.RLock()
        #: The error that ended it, if that happened before there was a communicator.
        self._failure: ReductionError | None = None
        self._is_closed = False

    def open(self, make: Callable[[], Communicator]) -> Communicator:
        """Return the communicator, which the first call creates.

        Raises:
            ClosedError: after `close`.
            ReductionError: the error given to `fail` before there was a communicator; or an error of `make`.
        """
        with self._lock:
            raise_again(self._failure)
            if self._is_closed:
                raise ClosedError(CLOSED)
            if self.communicator is None:
                self.communicator = made = make()
                self._dropping = weakref.finalize(self, made.leave)
                self._dropping.atexit = False  # one that still exists at exit is closed (`process.at_exit`)
                if self._is_closed:  # in the meantime
                    made.begin_close()
                    raise ClosedError(CLOSED)
            return self.communicator

    def fail(self, failure: ReductionError, make: Callable[[], Communicator]) -> None:
        """End with an error, on all ranks if they can be told. Does nothing if it has already ended."""
        communicator = None
        with self._lock:
            if self._is_closed or self.error is not None:
                return
            with contextlib.suppress(ReductionError):  # otherwise no rank can be told
                communicator = self.open(make)
            self._failure = failure
        if communicator is not None:
            communicator.abandon(failure)

    def close(self) -> None:
        """Leave cleanly."""
        self._is_closed = True
        if self.communicator is not None:
            self.communicator.close()
        if self._dropping is not None:
            self._dropping.detach()

    def abort(self) -> None:
        """End it now, on all ranks. Does nothing after `close`."""
        is_first, self._is_closed = not self._is_closed, True
        if self.communicator is not None and is_first:
            self.communicator.abandon(ClosedError(ABORTED))
            self.communicator.begin_close()

    @property
    def error(self) -> ReductionError | None:
        """The error that ended it; None if it was only ended by `close` or `abort`."""
        return (None if self.communicator is None else self.communicator.error) or self._failure

    def __str__(self) -> str:
        """Return which of the above states it is in."""
        if (error := self.error) is not None:
            return f"failed ({type(error).__name__})"
        if self._is_closed:
            return "closed"
        return "not connected" if self.communicator is None else "open"

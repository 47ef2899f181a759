"""How long a state has a communicator: from its first collective to its end, in the process that made it.

    nothing yet   `open` makes the communicator          open
                  `fail`, and nobody can be told         failed
    open          the communicator ends with an error    failed
                  `close`, `abort`                       closed
                  the state is dropped                   leaves in the background, after its collectives

An error that came before the end stays what `error` returns.
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
    """The lifetime of one communicator. Safe to call from any thread, and from a signal handler.

    Only the state may hold a reference to it.
    """

    def __init__(self) -> None:
        #: None before the first collective.
        self.communicator: Communicator | None = None
        #: What happens when this is dropped; until then it keeps the communicator.
        self._dropping: weakref.finalize[..., Any] | None = None
        #: Held while the communicator is made, which may take long: `close` and `abort` do not wait for that.
        self._lock = threading.RLock()
        #: What ended it before the communicator could.
        self._failure: ReductionError | None = None
        self._is_closed = False

    def open(self, make: Callable[[], Communicator]) -> Communicator:
        """Return the communicator, made by the first call.

        Raises:
            ClosedError: after `close`.
            ReductionError: the error that it was told before it could have a communicator; or of `make`.
        """
        with self._lock:
            raise_again(self._failure)
            if self._is_closed:
                raise ClosedError(CLOSED)
            if self.communicator is None:
                self.communicator = made = make()
                self._dropping = weakref.finalize(self, made.leave)
                self._dropping.atexit = False  # one that is kept until then is closed (`process.at_exit`)
                if self._is_closed:  # meanwhile
                    made.begin_close()
                    raise ClosedError(CLOSED)
            return self.communicator

    def fail(self, failure: ReductionError, make: Callable[[], Communicator]) -> None:
        """End with an error, on all ranks if they can be told; nothing happens if it is over."""
        communicator = None
        with self._lock:
            if self._is_closed or self.error is not None:
                return
            with contextlib.suppress(ReductionError):  # or there is nobody to tell
                communicator = self.open(make)
            self._failure = failure
        if communicator is not None:
            communicator.abandon(failure)

    def close(self) -> None:
        """Leave in good order."""
        self._is_closed = True
        if self.communicator is not None:
            self.communicator.close()
        if self._dropping is not None:
            self._dropping.detach()

    def abort(self) -> None:
        """End it now, on all ranks; nothing happens after `close`."""
        is_first, self._is_closed = not self._is_closed, True
        if self.communicator is not None and is_first:
            self.communicator.abandon(ClosedError(ABORTED))
            self.communicator.begin_close()

    @property
    def error(self) -> ReductionError | None:
        """The error that ended it; None if that was no more than `close` or `abort`."""
        return (None if self.communicator is None else self.communicator.error) or self._failure

    def __str__(self) -> str:
        """Say which of the above it is."""
        if (error := self.error) is not None:
            return f"failed ({type(error).__name__})"
        if self._is_closed:
            return "closed"
        return "not connected" if self.communicator is None else "open"

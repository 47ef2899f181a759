"""`AllReduceWork`: a process group's return value for its own all-reduces, and how the caller learns of the result."""

from __future__ import annotations

import collections
import datetime
import threading
import time
from collections.abc import Callable, Sequence

import torch
from reduction.errors import CollectiveTimeout
from reduction.shortage import failure_of
from torch.distributed import Work
from torch.utils.weak import TensorWeakRef

from worker_plugin.process_group.completions import completions
from worker_plugin.tensors.futures import Future, raise_again, raise_in_waiter

#: Up to torch 2.13 C++ may hold a Work whose Python half is gone. Then Python's `wait` is gone as well, and that of C++
#: never returns (seen in DDP.join). So this many of the Works most recently dropped by Python are kept. DDP.join waits
#: one backward pass later, which is far fewer all-reduces than this.
KEPT = 4096
#: DDP.join gives its Work to C++, which first waits for it and then asks for its tensor, a single number that nothing
#: else holds (torch 2.13: Reducer::mark_variable_ready). So a kept Work keeps its tensors if their memory has at most
#: this many bytes. All kept Works together have at most 4 MiB of them.
SMALL_BYTES = 1024
_kept: collections.deque[AllReduceWork] = collections.deque(maxlen=KEPT)


class AllReduceWork(Work):
    """An all-reduce of some tensors, which receive the result. Any thread may wait for it.

    Like torch's own Works, it holds the tensors while Python holds it, and once it is done nothing else of ours
    holds them. A barrier that waits for all-reduces (order.py) is one without tensors.

    torch's own way to create one from a future would lose errors:
    `_create_work_from_future(...).wait()` returns True for a failed future (torch 2.13).

    Args:
        tensors: receive the result.
        futures: those of the tensors, in the order in which they were issued.
        on_done: called when the last of them is done, with a result or an error, by the thread that completed it; may
            be called more than once.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        futures: Sequence[Future],
        on_done: Callable[[AllReduceWork], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._weak_tensors = [TensorWeakRef(tensor) for tensor in tensors]
        self._small = [tensor for tensor in tensors if tensor.untyped_storage().nbytes() <= SMALL_BYTES]
        self._devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._lock = threading.RLock()  # a signal handler may wait
        self._tensors = list(tensors)
        #: Empty once all are done, because their values are the tensors.
        self._futures = list(futures)
        #: The outcome of the futures after that: the error, and when the result is on the GPUs.
        self._error: Exception | None = None
        self._events: list[torch.cuda.Event] = []
        self._on_done = on_done
        for future in futures:
            future.add_done_callback(self._on_future)

    def __del__(self) -> None:
        self._tensors = self._small
        _kept.append(self)  # this resurrects it; Python calls `__del__` only once per object

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait for the result. For tensors on a GPU, make the current stream wait for it too.

        Raises:
            CollectiveTimeout: it did not arrive within the timeout, if there is one. The all-reduce continues.
            ReductionError: it failed.
        """
        if timeout is not None and timeout > datetime.timedelta(0):
            self._wait_until(time.monotonic() + timeout.total_seconds(), timeout)
        self._finish()
        for event in self._events:
            event.wait(torch.cuda.current_stream(event.device))
        raise_again(self._error)
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors. Its continuations may wait for other collectives."""
        tensors = self.result()
        devices: list[int | str | torch.device] = list(self._devices)
        combined: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)

        def complete() -> None:
            try:
                self.wait()
            except Exception as error:
                combined.set_exception(error)  # type: ignore[arg-type]  # annotated with the value's type
            else:
                combined.set_result(tensors)

        def begin(_: object) -> None:
            try:
                completions.submit(complete)
            except RuntimeError as error:
                failure = failure_of("cannot start a thread that goes on after an all-reduce", error)
                combined.set_exception(failure)  # type: ignore[arg-type]

        with self._lock:
            futures = self._futures
        # Only once the last one is done, otherwise the thread would just block.
        if futures:
            futures[-1].add_done_callback(begin)
        else:
            complete()
        return raise_in_waiter(combined)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, which hold the result once it has arrived.

        Raises:
            RuntimeError: nothing holds them any more.
        """
        tensors = [tensor() for tensor in self._weak_tensors]
        if any(tensor is None for tensor in tensors):
            raise RuntimeError("a tensor of this all-reduce is gone: keep it to get its result")
        return [tensor for tensor in tensors if tensor is not None]

    def is_completed(self) -> bool:
        """Return whether it has a result or an error."""
        return all(future.done() for future in self._futures)

    def is_success(self) -> bool:
        """Return whether it has a result."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return its error, or None if it has a result or is not done."""
        try:
            for future in self._futures:
                if future.done():
                    future.value()
        except Exception as error:
            return error
        return self._error

    def synchronize(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def _wait_until(self, deadline: float, timeout: datetime.timedelta) -> None:
        for future in self._futures:
            done = threading.Event()
            future.add_done_callback(lambda _, done=done: done.set())  # type: ignore[misc]
            if not done.wait(max(0.0, deadline - time.monotonic())):
                raise CollectiveTimeout(f"a collective has no result after {timeout.total_seconds():g} s")

    def _on_future(self, _: Future) -> None:
        if self.is_completed():
            self._finish()
            self._on_done(self)

    def _finish(self) -> None:
        """Wait for the futures and keep their outcome; make the current streams wait for the result."""
        with self._lock:
            futures = self._futures
        failure = None
        try:
            for future in futures:
                future.wait()
        except Exception as error:
            failure = error.with_traceback(None)  # its frames hold the futures
        with self._lock:
            if self._futures:
                self._events = [torch.cuda.current_stream(one).record_event() for one in self._devices]
                self._error = failure
                self._futures = []

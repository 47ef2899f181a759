"""`AllReduceWork`: what an all-reduce of a process group returns, and how its caller learns of the result."""

from __future__ import annotations

import collections
import datetime
import threading
import time
from collections.abc import Sequence

import torch
from reduction.errors import CollectiveTimeout
from torch.distributed import Work
from torch.utils.weak import TensorWeakRef

from worker_plugin.process_group.completions import completions
from worker_plugin.tensors.futures import Future, raise_in_waiter

#: Up to torch 2.13 C++ may hold a Work whose Python half is gone: then Python's `wait` is gone as well,
#: and that of C++ never returns (seen in DDP.join). So this many of the last ones are kept, which are
#: small once their result was waited for. DDP.join waits a backward pass later, far fewer
#: all-reduces than these.
KEPT = 4096
#: DDP.join gives its Work to C++, which first waits for it and then asks for its tensor, one number that
#: nobody else holds (torch 2.13: Reducer::mark_variable_ready). So a Work keeps tensors whose memory has at
#: most this many bytes, even once it was waited for. All that are kept have 4 MiB of them at most.
SMALL_BYTES = 1024
_kept: collections.deque[AllReduceWork] = collections.deque(maxlen=KEPT)


class AllReduceWork(Work):
    """An all-reduce of some tensors, which get the result; any thread may wait for it.

    Torch's own way to make one from a future would lose errors:
    `_create_work_from_future(...).wait()` returns True for a future that has failed (torch 2.13).

    Args:
        tensors: get the result.
        futures: those of the tensors, in the order in which they were issued.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], futures: Sequence[Future]) -> None:
        super().__init__()
        self._weak_tensors = [TensorWeakRef(tensor) for tensor in tensors]
        self._small = [tensor for tensor in tensors if tensor.untyped_storage().nbytes() <= SMALL_BYTES]
        self._lock = threading.Lock()
        #: Both are empty once a caller has the result, or `_kept` would hold large tensors.
        self._tensors = list(tensors)
        self._futures = list(futures)
        #: What is left of the futures then: the error, and when the result is on the GPUs.
        self._error: Exception | None = None
        self._events: list[torch.cuda.Event] = []
        _kept.append(self)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait for the result; of a GPU's tensors, let the current stream wait for it too.

        Raises:
            CollectiveTimeout: it did not come within the timeout, if there is one. The all-reduce
                goes on.
            ReductionError: it failed.
        """
        if timeout is not None and timeout > datetime.timedelta(0):
            self._wait_until(time.monotonic() + timeout.total_seconds(), timeout)
        with self._lock:
            futures = self._futures
        try:
            for future in futures:
                future.wait()
        except Exception as error:
            self._forget_futures(error)
        else:
            self._forget_futures(None)
        for event in self._events:
            event.wait(torch.cuda.current_stream(event.device))
        if self._error is not None:
            raise self._error.with_traceback(None)  # or each raise would make it longer
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors. Its continuations may wait for other collectives."""
        tensors = self.result()
        devices: list[int | str | torch.device] = list(
            {tensor.device for tensor in tensors if tensor.is_cuda}
        )
        combined: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)

        def complete() -> None:
            try:
                self.wait()
            except Exception as error:
                combined.set_exception(error)  # type: ignore[arg-type]  # annotated with the value's type
            else:
                combined.set_result(tensors)

        with self._lock:
            futures = self._futures
        # Not before the last one is done, or the thread would wait in vain.
        if futures:
            futures[-1].add_done_callback(lambda _: completions.submit(complete))
        else:
            complete()
        return raise_in_waiter(combined)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, which hold the result once it is there.

        Raises:
            RuntimeError: nobody holds them any more.
        """
        tensors = [tensor() for tensor in self._weak_tensors]
        if any(tensor is None for tensor in tensors):
            raise RuntimeError("a tensor of this all-reduce is gone: keep it to get its result")
        return [tensor for tensor in tensors if tensor is not None]

    def is_completed(self) -> bool:
        """Whether it has a result or an error."""
        return all(future.done() for future in self._futures)

    def is_success(self) -> bool:
        """Whether it has a result."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return its error; None if it has a result, or nothing yet."""
        try:
            for future in self._futures:
                if future.done():
                    future.value()
        except Exception as error:
            return error
        return self._error

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def _wait_until(self, deadline: float, timeout: datetime.timedelta) -> None:
        for future in self._futures:
            done = threading.Event()
            future.add_done_callback(lambda _, done=done: done.set())  # type: ignore[misc]
            if not done.wait(max(0.0, deadline - time.monotonic())):
                raise CollectiveTimeout(f"an all-reduce has no result after {timeout.total_seconds():g} s")

    def _forget_futures(self, error: Exception | None) -> None:
        """Keep what the futures have come to, which the calling thread's streams wait for already."""
        with self._lock:
            if not self._futures:
                return
            devices = {tensor.device for tensor in self._tensors if tensor.is_cuda}
            self._events = [torch.cuda.current_stream(device).record_event() for device in devices]
            self._error = error
            self._futures, self._tensors = [], []

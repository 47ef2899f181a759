"""Threads that complete futures of process groups.

A continuation of such a future may wait for another collective: torch's PowerSGD hook does. So no
continuation may run on the one thread that delivers all results (tensors/staging.py), and each gets
a thread for itself as long as it runs: a new thread starts whenever none is idle.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

from worker_plugin.process.at_exit import ClosedAtExit

#: Idle threads above this number end.
IDLE_MAX = 4
#: How long the end of the process waits for continuations of futures, in seconds.
STOP_S = 2.0


class Completions:
    """Runs functions on threads of its own; any thread may use it."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: How many threads wait for a job, less the jobs that wait for a thread.
        self._idle = 0
        self._threads: set[threading.Thread] = set()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a function, which must not raise, on a thread that does nothing else meanwhile.

        Raises:
            RuntimeError: there can be no more threads.
        """
        with self._lock:
            self._idle -= 1
            if self._idle < 0:
                self._idle += 1
                # A daemon: a continuation that waits for ranks which are gone must not hold up the
                # end of the process.
                thread = threading.Thread(target=self._run, name="reduction-complete", daemon=True)
                _at_exit.add(self)
                thread.start()
                self._threads.add(thread)
        self._jobs.put(job)

    def begin_close(self) -> None:
        """Nothing: `close` does all."""

    def close(self) -> None:
        """End the threads at the end of the process, which would abort if one returned from C++ after it."""
        self.stop(STOP_S)

    def stop(self, timeout_s: float) -> None:
        """End the idle threads; wait for them and for the busy ones, but no longer than `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        job = self._jobs.get()
        while job is not None:
            job()
            job = None  # or it would be kept until the next one comes
            with self._lock:
                if self._idle >= IDLE_MAX:
                    break
                self._idle += 1
            job = self._jobs.get()
        else:
            with self._lock:
                self._idle -= 1  # it was told to stop while it was idle
        with self._lock:
            self._threads.discard(threading.current_thread())


_at_exit: ClosedAtExit[Completions] = ClosedAtExit()
#: Those of this process, for all groups.
completions = Completions()

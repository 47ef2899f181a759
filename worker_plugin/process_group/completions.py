"""Threads that complete futures of process groups.

A continuation of such a future may wait for another collective, as torch's PowerSGD hook does. So no continuation
may run on the one thread that delivers all results (tensors/staging.py). Each gets a thread to itself while it
runs: a new thread starts whenever none is idle.
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
#: How long process exit waits for continuations of futures, in seconds.
STOP_S = 2.0


class Completions:
    """Runs functions on its own threads. For any thread."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: Number of threads waiting for a job, minus the number of jobs waiting for a thread.
        self._idle = 0
        self._threads: set[threading.Thread] = set()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a function, which must not raise, on a thread that does nothing else in the meantime.

        Raises:
            RuntimeError: no more threads can be created.
        """
        with self._lock:
            self._idle -= 1
            if self._idle < 0:
                self._idle += 1
                # A daemon: a continuation that waits for ranks that are gone must not delay the end of the process.
                thread = threading.Thread(target=self._run, name="reduction-complete", daemon=True)
                _at_exit.add(self)
                thread.start()
                self._threads.add(thread)
        self._jobs.put(job)

    def begin_close(self) -> None:
        """Do nothing: `close` does everything."""

    def close(self) -> None:
        """End the threads at process exit. The process would abort if one returned from C++ after it."""
        self.stop(STOP_S)

    def stop(self, timeout_s: float) -> None:
        """End the idle threads. Wait for them and for the busy ones, but no longer than `timeout_s`."""
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
            job = None  # otherwise it would be kept until the next one arrives
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
#: The instance of this process, for all groups.
completions = Completions()

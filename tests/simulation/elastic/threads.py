"""Processes with threads in simulated time, for blocking code of the product.

A simulated thread has its own operating system thread, but only one of them runs at a time. A thread that blocks hands
control back to the world, which continues with the next event of its clock. So a run depends only on its seed. Threads
switch where one of them blocks, and sometimes where one takes a lock.

`here` holds the running process and thread.
"""

from __future__ import annotations

import _thread
import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from simulation.elastic.loop import Loop
from simulation.network import Network, Process

#: Longest delay of a woken thread, in seconds, and how often a thread that takes a lock lets others run.
WAKE_S, YIELDS = 1e-4, 0.02


class Wrong(AssertionError):
    """The code did something forbidden."""


class Killed(BaseException):
    """The process of this thread has ended."""


class _Here:
    """The running process and thread."""

    process: Program
    thread: Thread | None = None


here = _Here()


class Program(Process):
    """A process that runs Python code with threads and an event loop."""

    def __init__(self, network: Network, host: str) -> None:
        super().__init__(network, host)
        self.threads: list[Thread] = []
        self.loop = Loop(self)
        #: Errors that the product's code did not catch.
        self.failures: list[str] = []

    def take(self, what: Callable[[], None]) -> None:
        """Run `what` on the thread of the event loop as soon as the process is not frozen."""
        super().take(partial(self.enter, what))

    def enter(self, what: Callable[[], None]) -> None:
        """Run `what` as this process."""
        if not self.is_alive:
            return
        before = getattr(here, "process", self)
        here.process = self
        asyncio._set_running_loop(self.loop)
        try:
            what()
        finally:
            asyncio._set_running_loop(None)
            here.process = before

    def start(self, target: Callable[[], None]) -> None:
        """Run `target` on a new thread."""
        self.enter(lambda: Thread(target).start())

    def kill(self) -> None:
        """End the process and all of its threads immediately."""
        super().kill()
        before, here.process = getattr(here, "process", self), self
        for thread in list(self.threads):
            thread.resume()
        self.loop.end()
        here.process = before


class Thread:
    """A substitute for `threading.Thread`."""

    def __init__(
        self,
        target: Callable[..., None] = lambda: None,
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self.process = here.process
        self.name = name
        self._target, self._args = target, args
        self._go, self._back = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._back.acquire()
        #: Number of locks that it holds.
        self.held = 0
        #: Number of its current pause; a waker only ends the pause whose number it has.
        self._pause = 0
        self._was_woken = False
        self._joining: list[Callable[[], None]] = []
        self.is_over = False

    def start(self) -> None:
        self.process.threads.append(self)
        _thread.start_new_thread(self._main, ())
        self._soon(self.resume)

    def join(self, timeout: float | None = None) -> None:
        thread = running()
        if not self.is_over:
            self._joining.append(thread.waker())
            thread.pause(timeout)

    def _main(self) -> None:
        self._go.acquire()
        try:
            if self.process.is_alive:
                self._target(*self._args)
        except Killed:
            pass
        except BaseException as error:
            self.process.failures.append(f"thread {self.name}: {error!r}")
        self.is_over = True
        self.process.threads.remove(self)
        for wake in self._joining:
            wake()
        del self._target, self._args
        self._back.release()

    def resume(self) -> None:
        """Let the thread run until it blocks; called by the world."""
        if self.is_over:
            return
        before, here.thread = here.thread, self
        self._go.release()
        try:
            self._back.acquire()
        finally:  # pytest-timeout may have ended the run, and the next world starts without a thread
            here.thread = before

    def waker(self) -> Callable[[], None]:
        """Return a function that ends the next pause of this thread; any thread may call it."""
        return partial(self._wake, self._pause + 1, True)

    def pause(self, seconds: float | None) -> bool:
        """Block; return whether a waker ended the pause, and not the timeout."""
        if not self.process.is_alive:
            raise Killed
        self._pause += 1
        if seconds is not None:
            clock = self.process.network.clock
            clock.at(clock.now + seconds, partial(self._wake, self._pause, False))
        self._back.release()
        self._go.acquire()
        if not self.process.is_alive:
            raise Killed
        return self._was_woken

    def _wake(self, pause: int, was_woken: bool) -> None:
        if pause == self._pause:
            self._pause += 1
            self._was_woken = was_woken
            self._soon(self.resume)

    def _soon(self, what: Callable[[], None]) -> None:
        network = self.process.network
        at = network.clock.now + network.random.random() * WAKE_S
        network.clock.at(at, lambda: self.process.take(what))


def running() -> Thread:
    """Return the running thread, which wants to block."""
    if here.thread is None:
        raise Wrong("the thread of an event loop blocks")
    return here.thread


class Lock:
    """A substitute for `threading.RLock` and `threading.Lock`."""

    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._count = 0

    def __enter__(self) -> None:
        thread = here.thread
        if thread is not None:
            if not thread.held and thread.process.network.random.random() < YIELDS:
                thread.pause(0.0)
            thread.held += 1
        if self._count and self._owner is not thread:
            raise Wrong("a thread has blocked with a lock held")
        self._owner = thread
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if here.thread is not None:
            here.thread.held -= 1


class Condition:
    """A substitute for `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiting: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        thread, lock = running(), self._lock
        if thread.held != lock._count:
            raise Wrong("a thread waits with another lock held")
        held, lock._count, thread.held = lock._count, 0, 0
        wake = thread.waker()
        self._waiting.append(wake)
        try:
            return thread.pause(timeout)
        finally:
            if wake in self._waiting:
                self._waiting.remove(wake)
            lock._owner, lock._count, thread.held = thread, held, held

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else now() + timeout
        while not (value := predicate()):
            if end is not None and now() >= end:
                break
            self.wait(None if end is None else end - now())
        return value

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class Event:
    """A substitute for `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def wait(self) -> None:
        while not self._is_set:
            self._waiting.append(running().waker())
            running().pause(None)


class SimpleQueue:
    """A substitute for `queue.SimpleQueue`."""

    def __class_getitem__(cls, _: object) -> type[SimpleQueue]:
        return cls

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._put = Condition()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._put.notify_all()

    def get(self) -> Any:
        with self._put:
            self._put.wait_for(lambda: self._items)
            return self._items.popleft()


def now() -> float:
    """Replace `time.monotonic`."""
    return here.process.network.clock.now


def sleep(seconds: float) -> None:
    """Replace `time.sleep`."""
    running().pause(seconds)

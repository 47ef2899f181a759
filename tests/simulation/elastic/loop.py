"""An event loop of asyncio in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.elastic.threads import Program


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, process: Program) -> None:
        self._process = process
        #: Tasks that have not ended, in the order of their start.
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def time(self) -> float:
        return self._process.network.clock.now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time(), callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def run() -> None:
            if not handle.cancelled():
                handle._run()

        self._process.network.clock.at(when, lambda: self._process.take(run))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks[task] = None
        task.add_done_callback(lambda done: self.tasks.pop(done, None))
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.is_alive:
            self._process.failures.append(f"event loop: {context['message']}: {context.get('exception')!r}")

    def end(self) -> None:
        """Drop all tasks, as the end of a process does."""
        for task in list(self.tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(RuntimeError):  # the coroutine awaits something while it is closed
                task.get_coro().close()  # type: ignore[union-attr]
        self.tasks.clear()

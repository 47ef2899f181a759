"""A serving process's side of its supervisor: orders and reports (`reducer.process.messages`)."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from reducer.process.messages import DRAIN, UNUSED, USED, siblings_of
from reducer.process.stopping import Stopping, listen_to_signals


class UnderSupervisor:
    """The supervisor of this process. Use it on the loop's thread."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._siblings: tuple[int, ...] = ()
        self._are_siblings_known = asyncio.Event()
        self._reported: bool | None = None
        self._has_asked = False

    async def obey(self) -> None:
        """Follow orders until stdin ends, and pass signals on to the supervisor."""
        listen_to_signals(self.ask_to_drain, self.ask_to_drain)
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        while line := (await lines.readline()).decode():
            if (siblings := siblings_of(line)) is not None:
                self._siblings = siblings
                self._are_siblings_known.set()
            elif line.strip() == DRAIN:
                self._stopping.ask()
        self._stopping.orphan()

    async def siblings(self) -> tuple[int, ...]:
        """Return the ports of the other processes once they serve, or () if this process should stop before that."""
        waits = [
            asyncio.create_task(wait) for wait in (self._are_siblings_known.wait(), self._stopping.wait())
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._siblings

    def ask_to_drain(self) -> None:
        """Ask the supervisor to drain all processes."""
        if not self._has_asked:
            self._has_asked = True
            self.report(DRAIN)

    def report_use(self, *, has_served: bool, jobs: int) -> None:
        """Report whether this process has jobs, if it has ever had one and the answer has changed."""
        if has_served and self._reported is not bool(jobs):
            self._reported = bool(jobs)
            self.report(USED if jobs else UNUSED)

    @staticmethod
    def report(line: str) -> None:
        """Send a line to the supervisor. If it is gone, stdin ends as well."""
        with contextlib.suppress(OSError):
            print(line, flush=True)

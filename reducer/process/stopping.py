"""Decide when a process stops, and how long it drains before that.

requested by                      drains for at most
SIGTERM, SIGINT, SIGHUP           --drain-timeout
`reducer drain`                   --drain-timeout
the end of stdin                  ORPHAN_DRAIN_S: the parent process is gone
the end of stdin after either     ORPHAN_DRAIN_S from then on
--exit-after-job, --wait-for-job  nothing: there is no job
a second SIGTERM or SIGINT        nothing: this process and its supervised processes end immediately

A process under a supervisor passes signals and `reducer drain` on to the supervisor, and waits for its
order (`reducer.process.under_supervisor`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

log = logging.getLogger(__name__)

#: How long a reducer drains when its parent is gone, in seconds. An embedded reducer then only waits
#: for ranks that are closing.
ORPHAN_DRAIN_S = 2.0
#: Exit code after a second signal.
EXIT_AT_ONCE = 130


def listen_to_signals(on_signal: Callable[[], None], on_hangup: Callable[[], None]) -> None:
    """Make the loop call a function at SIGTERM and SIGINT, and one at SIGHUP unless nohup(1) has it ignored.

    Ignore SIGUSR1 and SIGUSR2, which would end the process although no one intends that.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `reducer run` blocks them, and we inherit that


class Stopping:
    """Requests for a process to stop. Use it on the loop's thread."""

    def __init__(self, drain_timeout_s: float, at_second_signal: Callable[[], None] = lambda: None) -> None:
        self.drain_timeout_s = drain_timeout_s
        #: Whether the parent process is gone.
        self.is_orphaned = False
        #: The error passed to `ask`.
        self.error: Exception | None = None
        self._at_second_signal = at_second_signal
        self._was_signalled = False
        self._asked = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def is_asked(self) -> bool:
        """Whether this process was asked to stop."""
        return self._asked.is_set()

    def listen(self, *, stdin: bool) -> None:
        """Watch for signals from now on, and for the end of stdin if `stdin` is set."""
        listen_to_signals(self._on_signal, self.ask)
        if stdin:
            loop = asyncio.get_running_loop()
            loop.add_reader(sys.stdin.fileno(), self._on_stdin)

    async def wait(self) -> None:
        """Wait until this process is asked to stop."""
        await self._asked.wait()

    def ask(self, error: Exception | None = None) -> None:
        """Ask this process to stop, because of `error` if given."""
        self.error = self.error or error
        self._asked.set()

    def orphan(self) -> None:
        """Ask this process to stop soon, because its parent is gone."""
        self.is_orphaned = True
        self.drain_timeout_s = min(self.drain_timeout_s, ORPHAN_DRAIN_S)
        if self._asked.is_set():
            asyncio.get_running_loop().call_later(self.drain_timeout_s, self._over.set)
        self._asked.set()

    async def drain(self, unneeded: asyncio.Event) -> None:
        """Wait until this process is no longer needed, or time is up."""
        asyncio.get_running_loop().call_later(self.drain_timeout_s, self._over.set)
        waits = [asyncio.create_task(event.wait()) for event in (unneeded, self._over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _on_stdin(self) -> None:
        if os.read(sys.stdin.fileno(), 4096):
            return
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self.orphan()

    def _on_signal(self) -> None:
        """Drain at the first signal, and end all processes immediately at the second.

        Other requests do not count, because when every process is signalled, another process may report first.
        """
        if self._was_signalled:
            log.warning("second signal, exiting immediately")
            self._at_second_signal()
            os._exit(EXIT_AT_ONCE)
        self._was_signalled = True
        self._asked.set()

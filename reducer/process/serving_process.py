"""One serving process as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic

from reduction.process.launch import reducer_command
from reduction.process.ready import ready_address
from reduction.values import to_json

from reducer.config import ReducerConfig
from reducer.process.messages import DRAIN, UNUSED, USED, siblings_line

log = logging.getLogger(__name__)

#: How long a process may take to listen, in seconds.
START_S = 30.0
#: How long a restarted process counts as used, in seconds, because its jobs return to it.
RETURN_S = 10.0


class ServingProcess:
    """Process `number` of a reducer across its restarts, and its reports.

    Args:
        config: settings of the whole reducer.
        number: number of this process, from 0.
        port: gRPC port.
        lines: this process's ends of `messages.metrics_line`: one per other process in the first, else one.
        ask_to_drain: called when the process asks for the whole reducer to drain.
    """

    def __init__(
        self,
        config: ReducerConfig,
        number: int,
        port: int,
        lines: Sequence[socket.socket],
        ask_to_drain: Callable[[], None],
    ) -> None:
        self.number = number
        #: gRPC port.
        self.port = port
        #: Set as soon as the process listens for the first time.
        self.has_listened = asyncio.Event()
        #: Whether it listens now.
        self.is_serving = False
        #: Whether it has ever had a job.
        self.has_served = False
        self._config = config
        self._lines = lines
        self._ask_to_drain = ask_to_drain
        self._process: Process | None = None
        self._is_draining = False
        self._jobs: bool | None = None
        self._used_until = 0.0

    @property
    def address(self) -> str:
        """HOST:PORT of gRPC."""
        return self._config.address(self.port)

    @property
    def is_used(self) -> bool:
        """Whether it has a job, or may get one back after a restart."""
        return bool(self._jobs) or monotonic() < self._used_until

    async def live(self, siblings: Callable[[], Awaitable[Sequence[int]]]) -> tuple[int, float | None]:
        """Start the process and wait for its end. Return its exit code, and for how many seconds it listened.

        The seconds are None if it never listened.

        Args:
            siblings: waits for the ports that the process should advertise to workers, and returns them.

        Raises:
            OSError: the process cannot be started.
        """
        command, environment = reducer_command(Path(__file__).parents[2])
        lines = tuple(line.fileno() for line in self._lines)
        config = self._config.of_process(self.number, self.port, lines)
        # The process gets its own session, because Ctrl-C is for the supervisor.
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            *("serve", "--under-supervisor", json.dumps(to_json(config))),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            env=environment,
            pass_fds=lines,
        )
        assert process.stdout is not None
        if self._is_draining:
            self._order(DRAIN)
        handing = asyncio.create_task(self._hand_over(siblings))
        first = asyncio.create_task(process.stdout.readline())
        # A process that ends immediately does not wait for its siblings.
        await asyncio.wait((handing, first), return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first), START_S)
        handing.cancel()
        if not first.done():
            log.error("process %d did not listen within %g s pid=%d", self.number, START_S, process.pid)
            self.kill()
        if ready_address((await first).decode()) is None:
            self.kill()  # unless it has ended
            return await process.wait(), None
        began_s = monotonic()
        self.is_serving = True
        if self.has_listened.is_set():
            self._used_until = began_s + RETURN_S
        self.has_listened.set()
        while line := await process.stdout.readline():
            self._on_report(line.decode().strip())
        self.is_serving = False
        code = await process.wait()
        # Its jobs are unknown until it listens again.
        self._jobs, self._used_until = None, float("inf")
        return code, monotonic() - began_s

    def drain(self) -> None:
        """Tell the process to drain, now or when it starts."""
        self._is_draining = True
        self._order(DRAIN)

    def release(self) -> None:
        """Make the process end soon, as if this supervisor had ended."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def write_trace(self) -> None:
        """Make the process write its records for --trace."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR2)

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _hand_over(self, siblings: Callable[[], Awaitable[Sequence[int]]]) -> None:
        self._order(siblings_line(await siblings()))

    def _order(self, line: str) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(f"{line}\n".encode())

    def _on_report(self, line: str) -> None:
        if line in (USED, UNUSED):
            self.has_served = True
            self._jobs = line == USED
        elif line == DRAIN:
            self._ask_to_drain()

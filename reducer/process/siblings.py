"""Starts the other processes of one `reducer serve`, because one process uses one core.

Each sibling is a reducer of its own, with its own ports and incarnation. The first process names
their ports in its Welcome, and the workers open streams to them too. A sibling that dies is started
again on the same port, and its jobs take it back like any restarted reducer. Siblings end when
their stdin closes, which happens when the first process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from reduction.process.launch import reducer_command
from reduction.process.ready import ready_address

from reducer.config import TLS_OPTIONS, ReducerConfig

log = logging.getLogger(__name__)

#: How long a sibling may take to listen, in seconds.
START_S = 30.0
#: Pause before a sibling that ended is started again, in seconds.
RESTART_S = 1.0
#: How long siblings may take to end beyond the time to drain, in seconds.
STOP_S = 5.0


class Siblings:
    """The processes beside the first one. `config.processes` counts the first one too."""

    def __init__(self, config: ReducerConfig) -> None:
        self._config = config
        #: gRPC port of each sibling, in order.
        self.ports: list[int] = []
        self._processes: dict[int, Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._is_draining = False

    async def start(self) -> None:
        """Start all siblings and wait until they listen.

        Raises:
            OSError: one of them does not listen. Its log is on stderr.
        """
        numbers = range(1, self._config.processes)
        self.ports = list(await asyncio.gather(*(self._start(number, 0) for number in numbers)))
        self._keepers = [asyncio.create_task(self._keep(number)) for number in numbers]

    def drain(self) -> None:
        """Let all siblings drain and end. None of them is started again."""
        if self._is_draining:  # a second signal would end the siblings at once
            return
        self._is_draining = True
        for keeper in self._keepers:
            keeper.cancel()
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def stop(self) -> None:
        """Wait until all siblings have drained and ended. Kill those that do not.

        Their stdin stays open until then, because its end would shorten their draining.
        """
        self.drain()
        running = self._running
        if running:
            waits = [asyncio.create_task(process.wait()) for process in running]
            await asyncio.wait(waits, timeout=self._config.drain_timeout_s + STOP_S)
        for process in self._running:
            log.warning("killed a sibling that did not end pid=%d", process.pid)
            process.kill()

    def write_trace(self) -> None:
        """Have all siblings write their records, as `--trace` says."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGUSR2)

    def kill(self) -> None:
        """End all siblings at once."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    @property
    def _running(self) -> list[Process]:
        return [process for process in self._processes.values() if process.returncode is None]

    async def _start(self, number: int, port: int) -> int:
        config = self._config
        command, environment = reducer_command(Path(__file__).parents[2])
        command += ["serve", "--bind", config.address(port), "--processes", "1", "--stop-with-stdin"]
        command += ["--memory-limit", str(config.memory_limit_bytes_each)]
        command += ["--drain-timeout", str(config.drain_timeout_s)]
        command += ["--log-level", logging.getLevelName(logging.getLogger().level).lower()]
        command += ["--log-format", config.log_format]
        command += ["--insecure"] if config.insecure else []
        command += ["--link", f"{config.link_mbit}M"] if config.link_mbit else []
        paths = (config.tls_cert, config.tls_key, config.tls_ca, config.token_file)
        for option, path in zip((*TLS_OPTIONS, "--token-file"), paths, strict=True):
            command += [option, path] if path is not None else []
        command += ["--trace", config.trace] if config.trace is not None else []
        command += ["--data-port", str(config.data_port + number)] if config.data_port else []
        command += ["--metrics-port", str(config.metrics_port + number)] if config.metrics_port else []
        # A session of its own: Ctrl-C is for the first process, which passes it on as SIGTERM.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, start_new_session=True, env=environment
        )
        self._processes[number] = process
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), START_S)
        address = ready_address(line.decode())
        if address is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise OSError(f"process {number} of {config.processes} did not start; its own words are above")
        return int(address.rpartition(":")[2])

    async def _keep(self, number: int) -> None:
        """Start a sibling again whenever it ends."""
        while True:
            code = await self._processes[number].wait()
            log.warning("sibling ended and starts again number=%d exit_code=%d", number, code)
            await asyncio.sleep(RESTART_S)
            with contextlib.suppress(OSError):
                await self._start(number, self.ports[number - 1])

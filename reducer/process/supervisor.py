"""The parent of the processes of one `reducer serve`. It never serves, so no job can make it end.

Each process is a separate reducer, with its own ports and incarnation. The first one advertises the
ports of the others in its Welcome, and the workers open streams to them too. A process that ends is
restarted on the same ports, which the supervisor holds meanwhile, and its jobs take it back like any
restarted reducer. Starts that fail are retried while another process serves. All processes end when
their stdin closes, which happens when the supervisor ends for any reason.

This module and its imports avoid gRPC, NumPy and protobuf, so that the supervisor takes little memory
and the processes start soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence
from functools import partial
from time import monotonic

from reduction.process import descriptors
from reduction.process.ready import ready_line
from reduction.security.tokens import read_tokens

from reducer.binding import check_ports, hold_ports
from reducer.config import ReducerConfig
from reducer.process import service_manager
from reducer.process.log_resources import log_what_is_used
from reducer.process.messages import metrics_line
from reducer.process.restarts import Restarts
from reducer.process.serving_process import ServingProcess
from reducer.process.stopping import Stopping
from reducer.process.unused import NoJob, Unused

log = logging.getLogger(__name__)

#: How long processes may take to end beyond the time to drain, in seconds.
STOP_S = 5.0
#: How often the supervisor checks whether there are jobs, in seconds.
LOOK_S = 0.1
#: Exit codes of a process whose settings are wrong or whose address is taken. At the first start a retry
#: is pointless. Later its files or ports may just be in the process of being replaced.
_WRONG_SETTINGS = (2, 3)
#: Descriptors of the supervisor, and of each process: its pipes, both ends of its metrics line, held ports.
_DESCRIPTORS, _DESCRIPTORS_EACH = 64, 12
#: Exit code if a process does not start.
EXIT_NO_START = 1


async def supervise(config: ReducerConfig) -> int:
    """Let all processes serve until SIGTERM or SIGINT, drain them, and return the exit code.

    Raises:
        BindError: an address cannot be bound.
        ConfigError: a certificate, private key or token file cannot be used.
        NoJob: no job came within --wait-for-job.
    """
    log_what_is_used(config)
    # Each process repeats these checks. Here they report an error only once.
    check_ports(config)
    if config.tls is not None:
        config.tls.read()
    if config.token_file is not None:
        read_tokens(config.token_file)
    return await _Supervisor(config).run()


class _Supervisor:
    def __init__(self, config: ReducerConfig) -> None:
        self._config = config
        self._stopping = Stopping(config.drain_timeout_s, self._kill)
        descriptors.allow(_DESCRIPTORS + _DESCRIPTORS_EACH * config.processes)
        ports, self._held = hold_ports(config)
        lines = [metrics_line() for _ in ports[1:]] if config.metrics_port is not None else []
        ends = [[first for first, _ in lines], *([other] for _, other in lines)]
        self._processes = [
            ServingProcess(config, number, port, ends[number] if lines else (), self._stopping.ask)
            for number, port in enumerate(ports)
        ]
        self._exit_code = 0

    async def run(self) -> int:
        self._stopping.listen(stdin=self._config.stop_with_stdin)
        if self._config.trace is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._write_traces)
        keepers = [asyncio.create_task(self._keep(process)) for process in self._processes]
        helpers = [asyncio.create_task(self._announce())]
        if self._config.ends_by_itself:
            helpers.append(asyncio.create_task(self._end_with_the_job()))
        asked = asyncio.create_task(self._stopping.wait())
        # A keeper that ends on its own had one of our errors, which is raised below.
        await asyncio.wait((asked, *keepers), return_when=asyncio.FIRST_COMPLETED)
        self._stopping.ask()
        for helper in helpers:
            helper.cancel()
        service_manager.notify(service_manager.STOPPING)
        log.info("draining timeout=%gs", self._stopping.drain_timeout_s)
        for process in self._processes:
            if self._stopping.is_orphaned:
                process.release()
            else:
                process.drain()
        await self._all_ended(keepers)
        log.info("stopping")
        if self._stopping.error is not None:
            raise self._stopping.error
        return self._exit_code

    async def _keep(self, process: ServingProcess) -> None:
        """Restart a process whenever it ends, until all stop."""
        restarts = Restarts()
        while not self._stopping.is_asked:
            try:
                code, served_s = await process.live(partial(self._siblings_of, process))
            except OSError as error:
                log.error("process %d cannot be started: %s", process.number, error)
                code, served_s = EXIT_NO_START, None
            if self._stopping.is_asked:
                return
            if code in _WRONG_SETTINGS and not process.has_listened.is_set():
                self._give_up(code)
                self._kill()  # the others have no jobs yet
                return
            pause_s = restarts.after(served_s)
            # Its failure must not end other processes' jobs. There are none before it has listened for the first time.
            is_alone = not process.has_listened.is_set() or not any(one.is_serving for one in self._processes)
            if restarts.has_failed and is_alone:
                log.error(
                    "giving up: process %d ended %d times in a row before it served, the last time with exit code %d; "
                    "see its output above",
                    process.number,
                    restarts.failed_starts,
                    code,
                )
                self._give_up(EXIT_NO_START)
                return
            log.warning(
                "process %d ended and will be restarted exit_code=%d pause=%gs", process.number, code, pause_s
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _siblings_of(self, process: ServingProcess) -> Sequence[int]:
        """Return the ports that a process advertises: for the first, those of the others as soon as they listen."""
        if process.number:
            return ()
        others = self._processes[1:]
        for other in others:
            await other.has_listened.wait()
        return [other.port for other in others]

    def _give_up(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._stopping.ask()

    async def _announce(self) -> None:
        """Announce once that the reducer serves, when the first process listens, which is after all others."""
        first = self._processes[0]
        await first.has_listened.wait()
        print(ready_line(first.address), flush=True)
        service_manager.notify(service_manager.READY)
        log.info(
            "serving address=%s processes=%d siblings=%s metrics=%s memory_limit=%d",
            first.address,
            self._config.processes,
            [process.port for process in self._processes[1:]],
            self._config.metrics_url or "off",
            self._config.memory_limit_bytes,
        )

    async def _end_with_the_job(self) -> None:
        """Ask all to stop according to --exit-after-job and --wait-for-job, which count jobs of all processes."""
        after_job_s, first_job_s = self._config.exit_after_job_s, self._config.wait_for_job_s
        unused = Unused(after_job_s, first_job_s)
        while True:
            has_served = any(process.has_served for process in self._processes)
            jobs = sum(process.is_used for process in self._processes)
            if unused.is_over(has_served=has_served, jobs=jobs, now_s=monotonic()):
                break
            await asyncio.sleep(LOOK_S)
        if has_served:
            log.info("no job for %g s (--exit-after-job)", after_job_s)
            self._stopping.ask()
        else:
            self._stopping.ask(NoJob(f"no job came within {first_job_s:g} s (--wait-for-job)"))

    async def _all_ended(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Wait until all processes have drained and ended. Those that take too long are killed."""
        ended = asyncio.Event()
        waiting = asyncio.ensure_future(asyncio.gather(*keepers))
        waiting.add_done_callback(lambda _: ended.set())
        await self._stopping.drain(ended)
        for process in self._processes:
            process.release()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), STOP_S)
        if not waiting.done():
            log.warning("killed processes that did not end in time")
            self._kill()
        await waiting

    def _write_traces(self) -> None:
        for process in self._processes:
            process.write_trace()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

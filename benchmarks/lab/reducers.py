"""`reducer serve` processes, as a user would start them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from reduction.process.ready import close, wait_until_ready

from benchmarks.lab.hosts import LOOPBACK, Host
from benchmarks.lab.procfs import children, cpu_s

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
TOKEN_FILE = "REDUCTION_TOKEN_FILE"


class Reducers:
    """`count` reducer processes, on loopback or each on its own of `hosts`. They end when this process does."""

    def __init__(self, count: int, hosts: Sequence[Host] = (), processes: int = 1) -> None:
        self._processes = [start(host, processes=processes) for host in hosts or [LOOPBACK] * count]
        try:
            #: HOST:PORT of each.
            self.addresses = [wait_until_ready(process, START_TIMEOUT_S) for process in self._processes]
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the reducers, in the order of the addresses."""
        return [process.pid for process in self._processes]

    def kill(self, index: int) -> None:
        """Kill a reducer."""
        self._processes[index].kill()
        close(self._processes[index], STOP_TIMEOUT_S)

    def restart(self, index: int) -> None:
        """Restart a killed reducer on loopback at its address."""
        port = int(self.addresses[index].rpartition(":")[2])
        self._processes[index] = start(LOOPBACK, port)
        wait_until_ready(self._processes[index], START_TIMEOUT_S)

    def cpu_s(self) -> float:
        """Return the CPU seconds, user and system, of all reducers in steps of 10 ms."""
        pids = [pid for parent in self.pids for pid in (parent, *children(parent))]
        return sum(map(cpu_s, pids))

    def close(self) -> None:
        """Stop the reducers, and kill those that do not stop."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            close(process, STOP_TIMEOUT_S)


@contextmanager
def own_token(**others: str) -> Iterator[None]:
    """Make reducers started in the body require a token, which ranks started in the body show.

    Args:
        others: tokens of jobs with another one, by job name.
    """
    with tempfile.NamedTemporaryFile("w", prefix="reduction-token-") as file:  # only its owner may read it
        for job, token in {**others, "*": secrets.token_urlsafe(32)}.items():
            file.write(f"{job}:{token}\n")
        file.flush()
        os.environ[TOKEN_FILE] = file.name
        try:
            yield
        finally:
            del os.environ[TOKEN_FILE]


def start(
    host: Host,
    port: int = 0,
    *options: str,
    log_level: str = "warning",
    processes: int = 1,
    log: IO[str] | None = None,
) -> subprocess.Popen[str]:
    """Start a reducer, which reports on stdout when it serves, and ends with its stdin.

    Args:
        host: the host on which it runs.
        port: gRPC port; 0 picks any.
        options: more options of `serve`.
        log_level: its log level.
        processes: number of its processes; 0 means its default.
        log: file for its log; otherwise the log goes to stderr.
    """
    command = [*host.prefix, sys.executable, "-m", "reducer", "serve", "--bind", f"{host.address}:{port}"]
    command += ["--processes", f"{processes}"] if processes else []
    command += ["--stop-with-stdin", "--log-level", log_level, "--drain-timeout", "2", *options]
    command += ["--link", f"{host.link_mbit:g}M"] if host.link_mbit else []
    command += ["--token-file", os.environ[TOKEN_FILE]] if TOKEN_FILE in os.environ else []
    if host != LOOPBACK:
        command.append("--insecure")
    # Ctrl-C is for the test process. The ranks must still be able to finish their current operation.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
    )

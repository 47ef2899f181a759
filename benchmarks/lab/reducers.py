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
        """Their process ids, in the order of the addresses."""
        return [process.pid for process in self._processes]

    def kill(self, index: int) -> None:
        """Kill one of them."""
        self._processes[index].kill()
        close(self._processes[index], STOP_TIMEOUT_S)

    def restart(self, index: int) -> None:
        """Start one that was killed again, on loopback and at its address."""
        port = int(self.addresses[index].rpartition(":")[2])
        self._processes[index] = start(LOOPBACK, port)
        wait_until_ready(self._processes[index], START_TIMEOUT_S)

    def cpu_s(self) -> float:
        """Return the CPU seconds, user and system, that all of them have used; in steps of 10 ms."""
        pids = [pid for parent in self.pids for pid in (parent, *children(parent))]
        return sum(map(cpu_s, pids))

    def close(self) -> None:
        """Stop them, and kill those that do not stop."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            close(process, STOP_TIMEOUT_S)


@contextmanager
def own_token(**others: str) -> Iterator[None]:
    """Let reducers that are started meanwhile want a token, which ranks that are started meanwhile show.

    Args:
        others: tokens of jobs that have another one, by the names of the jobs.
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
    """Start one; it says on stdout when it serves, and ends with its stdin.

    Args:
        host: where it runs.
        port: of its calls; 0: any.
        options: more options of it.
        log_level: of what it logs.
        processes: how many it has; 0: as many as it likes.
        log: the file that gets what it logs; else stderr does.
    """
    command = [*host.prefix, sys.executable, "-m", "reducer", "serve", "--bind", f"{host.address}:{port}"]
    command += ["--processes", f"{processes}"] if processes else []
    command += ["--stop-with-stdin", "--log-level", log_level, "--drain-timeout", "2", *options]
    command += ["--link", f"{host.link_mbit:g}M"] if host.link_mbit else []
    command += ["--token-file", os.environ[TOKEN_FILE]] if TOKEN_FILE in os.environ else []
    if host != LOOPBACK:
        command.append("--insecure")
    # Ctrl-C is the test process's: the ranks must still be able to end what they are in.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
    )

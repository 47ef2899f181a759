"""`reducer serve` processes, as a user would start them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab.hosts import LOOPBACK, Host

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0

#: Begin of the line that a reducer prints when it serves.
READY = "listening on "

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Reducers:
    """`count` reducer processes, on loopback or each on its own of `hosts`. They end when this process does."""

    def __init__(self, count: int, hosts: Sequence[Host] = ()) -> None:
        self._processes = [start(host) for host in hosts or [LOOPBACK] * count]
        try:
            #: HOST:PORT of each.
            self.addresses = [_address(process) for process in self._processes]
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Their process ids, in the order of the addresses."""
        return [process.pid for process in self._processes]

    def cpu_s(self) -> float:
        """Return the CPU seconds, user and system, that all of them have used; in steps of 10 ms."""
        return sum(_cpu_s(process.pid) for process in self._processes)

    def close(self) -> None:
        """Stop them, and kill those that do not stop."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def start(host: Host, port: int = 0, *, log_level: str = "warning") -> subprocess.Popen[str]:
    """Start one; it says on stdout when it serves, and ends with its stdin."""
    command = [*host.prefix, sys.executable, "-m", "reducer", "serve", "--bind", f"{host.address}:{port}"]
    command += ["--workers", "1"]  # k counts processes
    command += ["--stop-with-stdin", "--log-level", log_level, "--drain-timeout", "2"]
    if host != LOOPBACK:
        command.append("--insecure")
    # Ctrl-C is the test process's: the ranks must still be able to end what they are in.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    )


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
    line = process.stdout.readline() if ready else ""
    if not line.startswith(READY):
        raise RuntimeError(f"a reducer did not start within {START_TIMEOUT_S:g} s; it said {line!r}")
    return line.removeprefix(READY).strip()


def _cpu_s(pid: int) -> float:
    # proc(5): the name may hold blanks and brackets; after it state is field 3, utime 14, stime 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

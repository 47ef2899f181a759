"""A command on several hosts, started as by a launcher on each of them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.lab.hosts import Host
from benchmarks.lab.ranks import RanksFailed

#: Once the command has failed on one host, it has this many seconds to end on the others.
GRACE_S = 5.0
#: Timeout in seconds until all killed processes are gone.
_KILL_TIMEOUT_S = 10.0
_POLL_S = 0.02
#: Maximum characters of output that are shown when the command fails.
_SHOWN = 3000


class Task(NamedTuple):
    """One run of the command on one host."""

    host: Host
    environment: Mapping[str, str]
    #: The file for its output.
    log: Path


def run(command: Sequence[str], tasks: Sequence[Task], timeout_s: float) -> None:
    """Run the command for every task to its end, and kill all remaining processes on its hosts.

    Args:
        command: the program, which must exist, and its arguments.
        tasks: tasks on hosts with their own namespaces, where nothing else may run.
        timeout_s: timeout in seconds.

    Raises:
        RanksFailed: the command failed on a host, or did not finish in time. The message has the end of its output.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for host, environment, log in tasks:
            with host.entered(), log.open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        process_group=0,
                    )
                )
        failed = _wait(processes, time.monotonic() + timeout_s)
    finally:
        # torchrun starts its ranks in separate sessions, so they would outlive its process group.
        for host in {task.host for task in tasks}:
            _clear(host)
        for process in processes:
            process.wait()
    if failed is None:
        return
    index, code = failed
    host, _, log = tasks[index]
    how = f"is not done after {timeout_s:g} s" if code is None else f"ended with exit code {code}"
    end = log.read_text(errors="replace")[-_SHOWN:]
    raise RanksFailed(f"`{shlex.join(command)}` {how} on {host.address}; the end of its output:\n{end}")


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> tuple[int, int | None] | None:
    """Return the first failed process and its exit code, or a late one and None; None if all succeeded."""
    failed: tuple[int, int | None] | None = None
    while True:
        codes = [process.poll() for process in processes]
        if failed is None and any(codes):
            failed = next((index, code) for index, code in enumerate(codes) if code)
            deadline = min(deadline, time.monotonic() + GRACE_S)
        if None not in codes:
            return failed
        if time.monotonic() > deadline:
            return failed or (codes.index(None), None)
        time.sleep(_POLL_S)


def _clear(host: Host) -> None:
    """Kill all processes on a host."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while pids := host.pids():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RanksFailed(f"processes {pids} on {host.address} cannot be killed")
        time.sleep(_POLL_S)

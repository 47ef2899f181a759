"""Runs a command with reducers on this host that live as long as it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from reduction.discovery.cluster import REDUCERS_VARIABLE
from reduction.process.launch import start_reducer
from reduction.process.ready import close, wait_until_ready

#: A reducer must listen after this many seconds.
START_S = 60.0
#: A reducer is killed if it has not ended this many seconds after the command.
STOP_S = 5.0
#: Exit codes of shells: the command could not be run, there is none, and what is added to the number
#: of a signal that ended it.
CANNOT_RUN, NOT_FOUND, BY_SIGNAL = 126, 127, 128
#: Signals that are meant for the command. Ctrl-C reaches it from the terminal, as it reaches us.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def running_reducers(count: int) -> Iterator[list[str]]:
    """Start reducers on free ports of the loopback address; yield HOST:PORT of each, and stop them at the end.

    They also stop when this process is killed.

    Raises:
        NotReady: one does not serve; its own message is on stderr.
    """
    options = ["--bind", "127.0.0.1:0", "--processes", "1", "--log-level", "warning"]
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            processes.append(start_reducer(Path(__file__).parents[2], options))
        yield [wait_until_ready(process, START_S) for process in processes]
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in processes:
            close(process, STOP_S)


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end; signals to this process are passed on to it. Return its exit code, as shells do."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    def ignore(number: int, _: FrameType | None) -> None:
        """Do nothing. The command must not inherit that, as it would SIG_IGN."""

    # Before the command runs, or a signal could end this process and leave the command behind.
    previous = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, ignore)
    try:
        process = subprocess.Popen(command, env=dict(environment))
        for number in early:
            process.send_signal(number)
        code = process.wait()
    except OSError as error:
        print(f"reducer run: {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return BY_SIGNAL - code if code < 0 else code


def settings_for(
    addresses: Sequence[str], auto: str | None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a training that uses these reducers; what the user has set stays."""
    environment = dict(environ)
    if addresses:
        environment[REDUCERS_VARIABLE] = ",".join(addresses)
    if auto is not None:
        environment.setdefault("REDUCTION_AUTO", auto)
    return environment

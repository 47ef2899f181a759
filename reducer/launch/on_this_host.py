"""Run a command with reducers on this host that live as long as the command."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from reduction.discovery.cluster import REDUCERS_VARIABLE
from reduction.errors import ConfigError
from reduction.process.kept_reducer import LOOPBACK, KeptReducer

from reducer.config import TOKEN_FILE_VARIABLE

#: Exit codes of shells: the command cannot be run, it was not found, and the offset added to the number
#: of a signal that ended it.
CANNOT_RUN, NOT_FOUND, BY_SIGNAL = 126, 127, 128
#: Signals that are passed on to the command.
_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
#: `si_code` of a signal from the kernel (sigaction(2)), such as Ctrl-C, which the command also receives from
#: the terminal.
_SI_KERNEL = 0x80
#: prctl(2).
_PR_SET_PDEATHSIG = 1


@contextmanager
def running_reducers(count: int) -> Iterator[list[KeptReducer]]:
    """Start reducers on free ports of the loopback address with one token, and stop them at the end.

    They also stop when this process is killed.

    Raises:
        ReducerUnavailable: a reducer failed to start; its own message is on stderr.
    """
    token = secrets.token_urlsafe(32)
    reducers: list[KeptReducer] = []
    try:
        for _ in range(count):
            reducers.append(KeptReducer(Path(__file__).parents[2], LOOPBACK, token))
        for reducer in reducers:
            reducer.wait_until_ready()
        yield reducers
    finally:
        for reducer in reducers:
            reducer.begin_stop()
        for reducer in reducers:
            reducer.stop()


@contextmanager
def variables_of(reducers: Sequence[KeptReducer]) -> Iterator[dict[str, str]]:
    """Yield the variables by which a command finds these reducers and their token, which is in a private file.

    Raises:
        ConfigError: the file cannot be created.
    """
    if not reducers:
        yield {}
        return
    try:
        made = tempfile.NamedTemporaryFile("w", prefix="reduction-token-")  # its mode is 0600
    except OSError as error:
        raise ConfigError(f"cannot create a file for the reducers' token: {error}; set TMPDIR") from None
    with made as file:
        file.write(f"*:{reducers[0].token}\n")
        file.flush()
        addresses = ",".join(reducer.address for reducer in reducers)
        yield {REDUCERS_VARIABLE: addresses, TOKEN_FILE_VARIABLE: file.name}


def run(command: Sequence[str], environment: Mapping[str, str], reducers: Sequence[KeptReducer] = ()) -> int:
    """Run a command to its end while keeping reducers alive, and return its exit code as shells do.

    Signals to this process are passed on to the command. If this process is killed, the command gets SIGTERM.
    """
    # Signals are waited for instead of handled, because only then the kernel tells their origin. The command
    # also ignores signals that this process was told to ignore, as by nohup.
    waited = {number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
    waited.add(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, the command's end would go unnoticed
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        begin = partial(_begin, ctypes.CDLL(None), os.getpid(), before)
        process = subprocess.Popen(command, env=dict(environment), preexec_fn=begin)
        while (code := process.poll()) is None:
            now_s = time.monotonic()
            pauses = [pause_s for reducer in reducers if (pause_s := reducer.look(now_s))]
            if pauses:
                got = signal.sigtimedwait(waited, min(pauses))
            else:
                got = signal.sigwaitinfo(waited)
            if got is not None and got.si_signo != signal.SIGCHLD and got.si_code != _SI_KERNEL:
                process.send_signal(got.si_signo)
    except OSError as error:
        print(f"reducer run: {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return BY_SIGNAL - code if code < 0 else code


def _begin(libc: ctypes.CDLL, parent: int, mask: set[int | signal.Signals]) -> None:
    """Prepare the command's single-threaded process to end with its parent, and to receive signals."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent has already ended
        os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def settings_for(
    variables: Mapping[str, str], auto: str | None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the user's environment with these variables added for a training."""
    environment = {**environ, **variables}
    if auto is not None:
        environment.setdefault("REDUCTION_AUTO", auto)
    return environment

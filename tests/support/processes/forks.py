"""Processes forked from a server that has torch and our code loaded, since loading takes two seconds.

They behave as if started by a command, with their own variables and descriptors 0 to 2. A test that needs its
variables set when our code is loaded starts a command instead.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from benchmarks.lab.hosts import LOOPBACK, Host

_CONTEXT = multiprocessing.get_context("forkserver")
#: DDP needs the second one; the last one keeps garbage collection away from objects of the others.
PRELOADED = ["pytest", "torch._dynamo", "worker_plugin.state", "support.processes.frozen"]
TESTS = Path(__file__).resolve().parents[2]


def _start_server() -> None:
    """Make sure that the server runs and finds its modules: it knows no paths but those in its variables.

    Benchmark ranks start in the same way. The first caller in a process decides what is loaded.
    """
    _CONTEXT.set_forkserver_preload(PRELOADED)
    paths = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), paths)))
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if paths is not None:
            os.environ["PYTHONPATH"] = paths


class Fork:
    """A process that calls a function; used like a `subprocess.Popen`."""

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: Any,
        out: Path,
        log: Path,
        variables: dict[str, str],
        host: Host = LOOPBACK,
    ) -> None:
        """Start it.

        Args:
            function: a module-level function.
            *arguments: its arguments; a connection is copied.
            out: file to which its stdout is appended.
            log: the same for stderr.
            variables: its environment.
            host: the host on which it runs.
        """
        for path in (out, log):
            path.touch()
        call = (out, log, variables, host, function, arguments)
        _start_server()
        self._process = _CONTEXT.Process(target=_main, args=call)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        #: Readable when it has ended.
        self.sentinel: int = self._process.sentinel

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it has ended; return its exit code."""
        self._process.join(timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(repr(self._process), timeout_s or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _main(
    out: Path,
    log: Path,
    variables: dict[str, str],
    host: Host,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(variables)
    appended = os.O_WRONLY | os.O_APPEND
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, appended), (2, log, appended)):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    try:
        with host.entered():
            function(*arguments)
    except SystemExit:
        raise
    except BaseException:
        # The interpreter does this at exit, and multiprocessing replaces it.
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()

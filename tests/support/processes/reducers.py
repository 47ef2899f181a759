"""`reducer serve` processes, started as operators start them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reduction.process.ready import NotReady, close, wait_until_ready
from support.processes.children import START_S, Log, environment
from support.processes.warm import WarmProcess, warm


def reducer_command(*arguments: str) -> str:
    """Return the output of the `reducer` command."""
    command = [warm("reducer"), "-m", "reducer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def status_of(address: str, *options: str) -> dict[str, Any]:
    """Return the output of the `status` command for the process at HOST:PORT."""
    return looked_at(address, *options)["processes"][0]


def looked_at(*arguments: str) -> dict[str, Any]:
    """Return the whole output of the `status` command."""
    return json.loads(reducer_command("status", "--json", *arguments))


class Reducer:
    """One `reducer serve` process; on a leash it also exits when this process is killed."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        bind: str = "127.0.0.1:0",
        leash: bool = True,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Start it. With `before`, which is called in the new process, it is not forked from a warm one."""
        self.log = Log(directory / f"reducer-{uuid.uuid4().hex[:6]}.log")
        arguments = ["-m", "reducer", "serve", "--bind", bind, "--processes", "1", *options]
        if leash:
            arguments.append("--stop-with-stdin")
        stdin = subprocess.PIPE if leash else subprocess.DEVNULL
        self.process: subprocess.Popen[str] | WarmProcess
        with self.log.path.open("w") as log:
            if before is None and warm("reducer") != sys.executable:
                self.process = WarmProcess("reducer", arguments, stdin=stdin, stderr=log, env=environment())
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *arguments],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment(),
                    preexec_fn=before,
                )
        try:
            self.address = wait_until_ready(self.process, START_S)
        except NotReady as error:
            pytest.fail(f"{error}:\n{self.log.text}")
        #: Whether the test has ended the process on purpose.
        self.is_over = False

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self.process.pid

    @property
    def port(self) -> int:
        """Port that it serves."""
        return int(self.address.rpartition(":")[2])

    def stop(self, timeout_s: float = 15.0) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and the stdout after the first line."""
        self.is_over = True
        self.process.terminate()
        return self.end(timeout_s)

    def end(self, timeout_s: float = 15.0) -> tuple[int, str]:
        """Wait until it exits; return the exit code and the stdout after the first line."""
        self.is_over = True
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still there after {timeout_s:g} s:\n{self.log.text}") from None
        assert self.process.stdout is not None
        return self.process.returncode, self.process.stdout.read()

    def kill(self) -> None:
        """Kill the process as a crash would. Does nothing if it has already exited."""
        self.is_over = True
        self.process.kill()
        close(self.process, 0.0)

    def check(self) -> None:
        """Fail if it died on its own or logged a bug."""
        self.log.check()
        if not self.is_over and self.process.poll() is not None:
            self.kill()
            pytest.fail(f"a reducer died with {self.process.returncode}:\n{self.log.text[-6000:]}")

"""The embedded default: with nothing configured, rank 0 runs a private reducer on loopback.

For the first try on one machine, and for tests: no server to start. It is the ordinary `reducer serve` in a
process of its own, and ends with its parent, whose pipe to its stdin closes however the parent ends. Only the ranks
know its token, so other users of the machine cannot join.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import subprocess
from pathlib import Path

from reduction.errors import ReducerUnavailable
from reduction.process.launch import reducer_command

READY = "listening on "
#: How long the process may take to start, in seconds.
START_S = 60.0
#: How long the process may take to end by itself once its stdin is closed, in seconds.
STOP_S = 4.0


def loopback_id() -> str:
    """Return a text that is the same for two processes just if they can meet on 127.0.0.1."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:  # not Linux
        return socket.gethostname()


class EmbeddedReducer:
    """A reducer process of this rank."""

    def __init__(self) -> None:
        """Start it and wait until it listens.

        Raises:
            ReducerUnavailable: it ended instead; its own words are on stderr.
        """
        # Beside our own package, wherever that is: not the first `reducer` that could be imported here.
        command, environment = reducer_command(Path(__file__).parents[2])
        command += ["serve", "--bind", "127.0.0.1:0", "--workers", "1"]
        self.token = secrets.token_urlsafe(32)
        # Through a pipe: everybody can see a command line.
        reading, writing = os.pipe()
        command += ["--stop-with-stdin", "--log-level", "warning", "--token-file", f"/dev/fd/{reading}"]
        with open(reading, "rb"):
            # Closed before anybody can inherit it, and so keep the reader waiting.
            with open(writing, "w") as file:
                file.write(f"*:{self.token}\n")
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the script, which may go on
                pass_fds=[reading],
            )
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:  # select.select takes no descriptor from 1024 on
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(START_S) else ""
        if not line.startswith(READY):
            self._process.kill()
            raise ReducerUnavailable(f"the embedded reducer did not start: exit code {self._process.wait()}")
        self.address = line.removeprefix(READY).strip()

    @property
    def descriptors(self) -> list[int]:
        """Pipes that a forked child must let go of, or the reducer would outlive this process."""
        pipes = (self._process.stdin, self._process.stdout)
        return [pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed]

    def stop(self) -> None:
        """Let it drain and end; kill it if it does not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

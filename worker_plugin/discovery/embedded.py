"""The private reducer that rank 0 starts on the loopback address if no reducers are configured.

With it, a first try on one machine needs no server, and neither do tests. It is the ordinary
`reducer serve` in a process of its own. Its stdin is a pipe from its parent; the pipe closes
however the parent ends, and the reducer ends then, too. Only the ranks know its token, so other
users of the machine cannot join.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from reduction.errors import ReducerUnavailable
from reduction.process.launch import reducer_command
from reduction.process.ready import NotReady, close, wait_until_ready

#: The process must listen after this many seconds.
START_S = 60.0
#: The process is killed if it has not ended by itself this many seconds after its stdin was closed.
STOP_S = 4.0


class EmbeddedReducer:
    """A reducer process that this rank has started."""

    def __init__(self) -> None:
        """Start the process and wait until it listens.

        Raises:
            ReducerUnavailable: the process does not serve; its own message is on stderr.
        """
        # The reducer that was installed beside our own package, not the first `reducer` that could
        # be imported here.
        command, environment = reducer_command(Path(__file__).parents[2])
        command += ["serve", "--bind", "127.0.0.1:0", "--workers", "1"]
        self.token = secrets.token_urlsafe(32)
        # The token goes through a pipe, because all users of the machine can see a command line.
        reading, writing = os.pipe()
        command += ["--stop-with-stdin", "--log-level", "warning", "--token-file", f"/dev/fd/{reading}"]
        with open(reading, "rb"):
            # The writing end is closed before a child inherits it, or the reader would wait for
            # more.
            with open(writing, "w") as file:
                file.write(f"*:{self.token}\n")
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C must reach the script only, which may go on
                pass_fds=[reading],
            )
        try:
            self.address = wait_until_ready(self._process, START_S)
        except NotReady as error:
            raise ReducerUnavailable(f"rank 0's private reducer: {error}") from None

    @property
    def descriptors(self) -> list[int]:
        """Pipes that a forked child must drop, or the reducer would outlive this process."""
        pipes = (self._process.stdin, self._process.stdout)
        return [pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed]

    def stop(self) -> None:
        """Let the process drain and end; kill it if it does not."""
        close(self._process, STOP_S)

"""A reducer that a process starts on its own host for its own jobs, and restarts whenever it ends.

It is the ordinary `reducer serve` in a separate process. Its stdin is a pipe from its parent. The pipe closes
however the parent ends, and then the reducer ends too. Only processes that know its token can use it, and no
other process can take its port while it is down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Sequence

from reduction.errors import ReducerUnavailable
from reduction.process.held_port import hold
from reduction.process.launch import start_reducer
from reduction.process.ready import NotReady, close, wait_until_ready

log = logging.getLogger(__name__)

#: The process must be listening within this many seconds.
START_S = 60.0
#: The process is killed if it has not ended on its own this many seconds after its stdin was closed.
STOP_S = 4.0
#: Pause before a process that has ended is restarted, in seconds. Each restart doubles it, up to the
#: second number.
RESTART_S, RESTART_MAX_S = 0.5, 30.0
#: Seconds after which a process counts as stable. If it ends later, it is restarted without a longer pause.
STEADY_S = 60.0
LOOPBACK = "127.0.0.1"


class KeptReducer:
    """Handle of a reducer process that this process started. Use it from one thread at a time.

    Args:
        folder: the folder with the package `reducer`.
        host: address to listen at.
        token: token that every job must show.
        options: more options of `serve`.

    Raises:
        ReducerUnavailable: there is no port available.
        OSError: the process cannot be created.
    """

    def __init__(
        self, folder: str | os.PathLike[str], host: str, token: str, options: Sequence[str] = ()
    ) -> None:
        self.token = token
        self._folder = folder
        self._options = options
        try:
            port, self._held = hold([host])
        except OSError as error:
            raise ReducerUnavailable(f"a reducer cannot be started: {error.strerror or error}") from None
        #: HOST:PORT.
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._pause_s = RESTART_S
        #: When the process will be restarted, None while it runs.
        self._again_at: float | None = None
        try:
            self._process = self._start()
        except BaseException:
            self._let_go()
            raise

    def _start(self) -> subprocess.Popen[str]:
        self._started_at = time.monotonic()
        options = ["--bind", self.address, "--ports-are-held", "--processes", "1", "--log-level", "warning"]
        return start_reducer(self._folder, [*options, *self._options], self.token)

    def wait_until_ready(self) -> None:
        """Wait until the reducer serves for the first time.

        Raises:
            ReducerUnavailable: it failed to start; its own message is on stderr.
        """
        try:
            wait_until_ready(self._process, START_S)
        except NotReady as error:
            self._let_go()
            raise ReducerUnavailable(str(error)) from None

    def look(self, now_s: float) -> float:
        """Restart the process after a pause if it has ended. Return the number of seconds until the next look.

        Args:
            now_s: monotonic time.

        Returns:
            0 if the process runs, in which case look again when it has ended.
        """
        code = self._process.poll()
        if code is None:
            return 0.0
        if self._again_at is None:
            log.warning("the reducer %s on this host ended with %d; it will be restarted", self.address, code)
            if now_s >= self._started_at + STEADY_S:
                self._pause_s = RESTART_S
            self._again_at = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, RESTART_MAX_S)
        if now_s < self._again_at:
            return self._again_at - now_s
        try:
            replaced, self._process = self._process, self._start()
        except OSError as error:  # perhaps there is no memory for a process
            log.warning("the reducer %s on this host cannot be started: %s", self.address, error)
            self._again_at = now_s + self._pause_s
            return self._pause_s
        close(replaced, 0.0)
        self._again_at = None
        return 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the process was seen to have ended and has not been replaced."""
        return self._process.returncode is not None

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """Return the descriptors by which a forked child would keep the reducer or its port alive."""
        pipes = [self._process.stdin, self._process.stdout]
        numbers = [pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed]
        return set(), numbers + [one.fileno() for one in self._held if one.fileno() >= 0]

    def begin_stop(self) -> None:
        """Let the process drain and end in the background. It is not restarted."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def stop(self) -> None:
        """Let the process drain and end; kill it if it does not."""
        self.begin_stop()
        close(self._process, STOP_S)
        self._let_go()

    def _let_go(self) -> None:
        for one in self._held:
            one.close()

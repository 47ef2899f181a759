"""A reducer that a rank has started on its own host, for jobs of its own only.

Rank 0 starts one on the loopback address if no reducers are configured and all ranks are on its
host: so a first try on one machine needs no server, and neither do tests. If ranks are on several
hosts, each host may have one, for the others to reach (colocated.py). It is the ordinary `reducer
serve` in a process of its own. Its stdin is a pipe from its parent; the pipe closes however the
parent ends, and the reducer ends then, too. Only the ranks know its token, so nobody else can join.

Jobs are apart inside of a reducer, so all jobs of this process for which a reducer would be started the
same way share one (`lend`). The last of them ends it (`give_back`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from reduction.discovery.address_forms import join_host_and_port
from reduction.errors import ReducerUnavailable
from reduction.process.launch import start_reducer
from reduction.process.ready import NotReady, close, wait_until_ready
from reduction.security.tls import TlsFiles

from worker_plugin.process import fork

log = logging.getLogger(__name__)

#: The process must listen after this many seconds.
START_S = 60.0
#: The process is killed if it has not ended by itself this many seconds after its stdin was closed.
STOP_S = 4.0
#: Pause before a process that has ended is started again, in seconds; each time doubles it, up to the
#: second number.
RESTART_S, RESTART_MAX_S = 0.5, 30.0
#: A process that has lived for so many seconds is started again as if it were the first time.
STEADY_S = 60.0
LOOPBACK = "127.0.0.1"

#: Name and group of a job.
User: TypeAlias = tuple[str, str]


class EmbeddedReducer:
    """A reducer process that this rank has started.

    Args:
        host: address to listen at.
        token: that ranks must show; None makes one up.
        tls: certificate, key and CA of mutual TLS; the certificate must be good for a server too.

    Raises:
        ReducerUnavailable: the process does not serve; its own message is on stderr.
    """

    def __init__(self, host: str = LOOPBACK, token: str | None = None, tls: TlsFiles | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        #: The jobs that use it, each as its name and group; guarded by `_lending`.
        self.users: set[User] = set()
        self._host = host
        self._tls = tls
        self._stopping = threading.Event()
        #: Held while another process takes the place of one that has ended.
        self._replacing = threading.Lock()
        self._process, self.address = self._start(0)
        fork.register(self)

    def _start(self, port: int) -> tuple[subprocess.Popen[str], str]:
        # The reducer that was installed beside our own package, not the first `reducer` that could
        # be imported here.
        options = [
            "--bind",
            join_host_and_port(self._host, port),
            "--processes",
            "1",
            "--log-level",
            "warning",
        ]
        if self._tls is not None:
            options += ["--tls-cert", self._tls.cert, "--tls-key", self._tls.key, "--tls-ca", self._tls.ca]
        process = start_reducer(Path(__file__).parents[2], options, self.token)
        try:
            return process, wait_until_ready(process, START_S)
        except NotReady as error:
            raise ReducerUnavailable(f"the reducer that a rank starts on its own host: {error}") from None

    def keep_alive(self) -> None:
        """Start the process again, at the same address, whenever it ends by itself."""
        threading.Thread(target=self._keep_alive, name="reduction-embedded", daemon=True).start()

    def _keep_alive(self) -> None:
        pause_s = RESTART_S
        while True:
            started_at = time.monotonic()
            code = self._process.wait()
            if time.monotonic() >= started_at + STEADY_S:
                pause_s = RESTART_S
            if not self._stopping.is_set():
                log.warning("the reducer %s on this host ended with %d; it starts again", self.address, code)
            if self._stopping.wait(pause_s):
                return
            with self._replacing:
                if self._stopping.is_set():
                    return
                close(self._process, 0.0)
                try:
                    self._process, _ = self._start(int(self.address.rpartition(":")[2]))
                except (ReducerUnavailable, OSError) as error:  # no memory for a process, perhaps
                    log.warning("%s", error)
            pause_s = min(2 * pause_s, RESTART_MAX_S)

    def suits(self, user: User, host: str, token: str | None, tls: TlsFiles | None) -> bool:
        """Whether it is as `lend` is asked for, runs, and has no job of this name and group."""
        same = (self._host, self._tls) == (host, tls) and token in (None, self.token)
        return same and user not in self.users and self._process.returncode is None

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """Return its pipes: in a forked child they would keep the reducer alive. See `fork.DescriptorOwner`."""
        pipes = (self._process.stdin, self._process.stdout)
        return set(), [pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed]

    def begin_stop(self) -> None:
        """Let the process drain and end, in the background."""
        self._stopping.set()
        with self._replacing, contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def stop(self) -> None:
        """Let the process drain and end; kill it if it does not."""
        self.begin_stop()  # after it no other process takes this one's place
        close(self._process, STOP_S)


#: Held while a reducer is lent, and perhaps started, so that a job which comes at the same time shares it.
_lending = threading.Lock()
#: The reducers of this process that have users.
_lent: list[EmbeddedReducer] = []


def lend(
    user: User, host: str = LOOPBACK, token: str | None = None, tls: TlsFiles | None = None
) -> EmbeddedReducer:
    """Return a reducer for one more job of this process; start one if none suits. It is kept alive.

    Args:
        user: the job's name and group; a reducer cannot have two jobs of which these are the same.
        host: address that it must listen at.
        token: that ranks must show; None takes any.
        tls: certificate, key and CA of mutual TLS.

    Raises:
        ReducerUnavailable: it does not start.
    """
    with _lending:
        for reducer in _lent:
            if reducer.suits(user, host, token, tls):
                break
        else:
            reducer = EmbeddedReducer(host, token, tls)
            reducer.keep_alive()
            _lent.append(reducer)
        reducer.users.add(user)
        return reducer


def give_back(user: User, reducers: Iterable[EmbeddedReducer]) -> None:
    """Return reducers that a job has borrowed. Those that no job uses any more end, at the same time.

    It blocks until they have ended.
    """
    with _lending:
        for reducer in reducers:
            reducer.users.discard(user)
        unused = [reducer for reducer in _lent if not reducer.users]
        _lent[:] = [reducer for reducer in _lent if reducer.users]
    for reducer in unused:
        reducer.begin_stop()
    for reducer in unused:
        reducer.stop()


def _forget() -> None:
    """Leave the parent's reducers to the parent, after a fork."""
    global _lending
    _lending = threading.Lock()
    _lent.clear()


os.register_at_fork(after_in_child=_forget)

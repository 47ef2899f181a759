"""A reducer that a rank has started on its own host, only for its own jobs.

Rank 0 starts one on the loopback address if no reducers are configured and all ranks are on its host. So neither
a first try on one machine nor tests need a server. If ranks are on several hosts, each host may have one that the
others can reach (colocated.py).

Jobs are isolated inside a reducer. So all jobs of this process whose reducers would be started in the same way
share one (`lend`). The last of them ends it (`give_back`).
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from reduction.process.kept_reducer import LOOPBACK, KeptReducer
from reduction.security.tls import TlsFiles

from worker_plugin.process import fork

#: Name and group of a job.
User: TypeAlias = tuple[str, str]


class EmbeddedReducer(KeptReducer):
    """A reducer process started by this rank. A thread keeps it alive.

    Args:
        host: address to listen on.
        token: the token required of ranks; None generates one.
        tls: certificate, key and CA of mutual TLS; the certificate must also be valid for a server.

    Raises:
        ReducerUnavailable: the process does not serve; its own message is on stderr.
    """

    def __init__(self, host: str = LOOPBACK, token: str | None = None, tls: TlsFiles | None = None) -> None:
        #: The jobs that use it, as pairs of name and group; guarded by `_lending`.
        self.users: set[User] = set()
        self._host, self._tls = host, tls
        self._stopping = threading.Event()
        #: Held while another process replaces one that has ended.
        self._replacing = threading.Lock()
        options = () if tls is None else ("--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca)
        # The reducer installed alongside our own package, not the first importable `reducer`.
        super().__init__(Path(__file__).parents[2], host, token or secrets.token_urlsafe(32), options)
        self.wait_until_ready()
        fork.register(self)

    def keep_alive(self) -> None:
        """Restart the process at the same address whenever it ends on its own."""
        threading.Thread(target=self._keep_alive, name="reduction-embedded", daemon=True).start()

    def _keep_alive(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            self._process.wait()
            with self._replacing:
                if self._stopping.is_set():
                    return
                pause_s = self.look(time.monotonic())

    def suits(self, user: User, host: str, token: str | None, tls: TlsFiles | None) -> bool:
        """Return whether it matches a call of `lend`, is running, and has no job of this name and group."""
        same = (self._host, self._tls) == (host, tls) and token in (None, self.token)
        return same and user not in self.users and not self.has_ended

    def begin_stop(self) -> None:
        """See `KeptReducer.begin_stop`. After this, no other process replaces this one."""
        self._stopping.set()
        with self._replacing:
            super().begin_stop()


#: Held while a reducer is lent, and perhaps started, so that a concurrent job shares it.
_lending = threading.Lock()
#: The reducers of this process that have users.
_lent: list[EmbeddedReducer] = []


def lend(
    user: User, host: str = LOOPBACK, token: str | None = None, tls: TlsFiles | None = None
) -> EmbeddedReducer:
    """Return a reducer for another job of this process, starting one if none is suitable. It is kept alive.

    Args:
        user: the job's name and group; a reducer cannot have two jobs with the same ones.
        host: the required listening address.
        token: the token required of ranks; None accepts any.
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
    """Return the reducers that a job has borrowed. Those no longer used by any job end in parallel.

    Blocks until they have ended.
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

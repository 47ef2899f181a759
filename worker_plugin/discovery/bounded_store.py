"""`BoundedStore`: a store of torch.distributed that answers within our limits, or raises.

The store's own timeout, 30 minutes by default, is not a reliable limit. A client tries that long to connect to a
host that is gone, and waits forever for the answer of one that is stopped or cut off (torch 2.13:
TCPStore::check, ::ping). Neither can be interrupted. So every call runs on its own thread, which is abandoned
when it takes too long.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import time
from collections.abc import Callable
from concurrent.futures import wait
from datetime import timedelta
from functools import partial
from typing import TypeVar

from reduction.blocking import begin
from reduction.discovery.address_forms import join_host_and_port
from reduction.errors import WorkerLost
from torch._C._distributed_c10d import FileStore, TCPStore
from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import PrefixStore, Store

from worker_plugin.config import PluginConfig
from worker_plugin.tensors.futures import raise_again

log = logging.getLogger(__name__)

#: How much longer than its own timeout a call is waited for, in seconds, if it has one. The error it raises itself is
#: more informative.
EXTRA_S = 2.0
#: After the first warning, the next ones follow at this multiple of `stall_warn_s`.
WARN_INTERVALS = 3
_ADVICE = "check the host and the process that serve it, rank 0's or torchrun's, and restart all ranks"

T = TypeVar("T")


class BoundedStore:
    """For one thread at a time. Once a call has taken too long, all later ones immediately raise the same error.

    Args:
        raw: torch's store. Callers that hand it to torch must enforce their own limit.
        config: provides the limits.
    """

    def __init__(self, raw: Store, config: PluginConfig) -> None:
        self.raw = raw
        self._config = config
        self._failure: WorkerLost | None = None

    @classmethod
    def connect(cls, store: Store, config: PluginConfig) -> BoundedStore:
        """Return a new client of a store.

        A blocking call on the shared client would stall its use by the training thread.

        Raises:
            WorkerLost: see `ask`.
        """
        client = cls(store, config)
        client.raw = client.ask(partial(_clone, limit_s=config.join_timeout_s))
        return client

    def below(self, prefix: str) -> BoundedStore:
        """Return the part of the store whose keys have this prefix."""
        return BoundedStore(PrefixStore(prefix, self.raw), self._config)

    def ask(self, call: Callable[[Store], T]) -> T:
        """Return the result of a function called with torch's store, which must read only keys that exist.

        Raises:
            WorkerLost: the store has not answered within `join_timeout_s`, or is gone.
        """
        config = self._config
        try:
            return self.run(call, config.join_timeout_s, " (join_timeout_s)", config.stall_warn_s)
        except RuntimeError as error:  # such as torch's for a FileStore
            raise self._lose(f"no longer answers: {_reason(error)}") from None

    def run(
        self, call: Callable[[Store], T], limit_s: float, setting: str = "", warn_s: float = math.inf
    ) -> T:
        """Return the result of a function called with torch's store, which may wait for other ranks there.

        Args:
            call: its own errors are raised here, unless they are broken connections.
            limit_s: how long it may take, in seconds.
            setting: the source of the limit, for the error.
            warn_s: after how many seconds a warning is logged.

        Raises:
            WorkerLost: it took longer, or the store is gone.
        """
        raise_again(self._failure)
        answer = begin(partial(call, self.raw))
        now = time.monotonic()
        give_up_at, warn_at = now + limit_s, now + warn_s
        while not wait([answer], min(warn_at, give_up_at) - now).done:
            now = time.monotonic()
            if now >= give_up_at:
                raise self._lose(f"has not answered within {limit_s:g} s{setting}")
            if now >= warn_at:
                text = "waiting for %s to answer; giving up in %.0f s"
                log.warning(text, name_of(self.raw), give_up_at - now)
                warn_at = now + WARN_INTERVALS * warn_s
        try:
            return answer.result()
        except (DistNetworkError, OSError) as error:
            raise self._lose(f"no longer answers: {_reason(error)}") from None

    def get(self, key: str) -> str:
        """Return the text of an existing key; see `ask`."""
        value: bytes = self.ask(lambda store: store.get(key))
        return value.decode()

    def set(self, key: str, text: str) -> None:
        """Write a string; see `ask`."""
        self.ask(lambda store: store.set(key, text))

    def _lose(self, what: str) -> WorkerLost:
        self._failure = WorkerLost(f"{name_of(self.raw)} {what}: {_ADVICE}")
        return self._failure


def check_alive(store: Store, config: PluginConfig) -> None:
    """Return if a store on a host answers. Other stores are assumed to.

    Raises:
        WorkerLost: see `BoundedStore.ask`.
    """
    if isinstance(_innermost(store), TCPStore):
        BoundedStore.connect(store, config)


def name_of(store: Store) -> str:
    """Return the name of a store in messages, with its host and port or the path of its file."""
    inner = _innermost(store)
    where = ""
    if isinstance(inner, TCPStore):
        where = f" at {join_host_and_port(inner.host, inner.port)}"
    elif isinstance(inner, FileStore):
        where = f" in {inner.path}"  # type: ignore[attr-defined]  # not in the stubs
    return f"the store of torch.distributed{where}"


def _innermost(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _clone(store: Store, limit_s: float) -> Store:
    inner = _innermost(store)
    if isinstance(inner, TCPStore):
        # torch's client would keep retrying even where nothing listens any more.
        with contextlib.suppress(socket.gaierror):  # a name server, however, may be back in a moment
            socket.create_connection((inner.host, inner.port), limit_s).close()
    client: Store = store.clone()  # type: ignore[attr-defined]  # not in the stubs
    client.set_timeout(timedelta(seconds=limit_s))
    return client


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0]

"""Substitutes for the product's time, threads, randomness, names and network while workers are simulated."""

from __future__ import annotations

import concurrent.futures
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from simulation.elastic import threads
from simulation.elastic.threads import here
from simulation.elastic.wires import Endpoint, Life, Links

from reducer.transports import lobby_calls
from worker_plugin import client, driver, ending
from worker_plugin.config import PluginConfig
from worker_plugin.elastic import clients, forming, steps, worker
from worker_plugin.elastic.membership import predecessor
from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.newcomers import admission, donation
from worker_plugin.tensors import staging
from worker_plugin.transports import lobby_client

_THREADING = SimpleNamespace(
    Thread=threads.Thread,
    Condition=threads.Condition,
    Event=threads.Event,
    RLock=threads.Lock,
    Lock=threads.Lock,
    current_thread=lambda: here.thread,
)
_QUEUE = SimpleNamespace(SimpleQueue=threads.SimpleQueue)
_TIME = SimpleNamespace(monotonic=threads.now, sleep=threads.sleep)


class _Future(torch.futures.Future):
    """A torch future on which a simulated thread may wait. It may be completed only once."""

    def set_result(self, result: Any) -> None:  # `set_exception` calls it too
        if self.done():
            here.process.failures.append(f"a future was completed twice, the second time with {result!r:.80}")
        super().set_result(result)

    def wait(self) -> Any:
        if not self.done():
            self.add_done_callback(partial(_call, threads.running().waker()))
            threads.running().pause(None)
        return super().wait()


def _call(what: Callable[[], None], _: object) -> None:
    what()


def _random_bytes(count: int) -> bytes:
    return here.process.network.random.randbytes(count)


class _Open:
    """The open communicators of the current process."""

    def __init__(self, name: str) -> None:
        self._name = name

    def add(self, member: object) -> None:
        here.process.__dict__.setdefault(self._name, []).append(member)

    def __iter__(self) -> Iterator[Any]:
        return iter(here.process.__dict__.get(self._name, ()))


class _Discovery(threads.Thread):
    give_up_at = float("inf")


class _HostFolder:
    """A `/dev/shm` for each host."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __truediv__(self, name: str) -> Path:
        folder = self._root / here.process.host
        folder.mkdir(exist_ok=True)
        return folder / name


def _wait(futures: list[concurrent.futures.Future[Any]], timeout: float) -> None:
    until = threads.now() + timeout
    while threads.now() < until and not all(future.done() for future in futures):
        threads.sleep(0.01)


async def _peers_of(address: str) -> set[tuple[str, int]]:
    return set()


def _client_of(config: PluginConfig, own: Worker, generation: Generation, local_size: int) -> client.Client:
    here.process.on_joined(generation)
    return clients.client_of(config, own, generation, local_size)


def _make_future(tensor: torch.Tensor) -> _Future:
    return _Future()


def _names(folder: Path) -> list[tuple[Any, dict[str, Any]]]:
    secrets = SimpleNamespace(token_bytes=_random_bytes, token_hex=lambda count: _random_bytes(count).hex())
    socket = SimpleNamespace(gethostname=lambda: here.process.host)
    blocking = {"threading": _THREADING, "time": _TIME}
    silent = SimpleNamespace(announce=_nothing)
    loop = {"io_loop": lambda: here.process.loop}
    return [
        (lobby_calls, {"time": _TIME, "Life": Life}),
        (
            client,
            blocking
            | loop
            | {"life_port": lambda: 1}
            | {"secrets": secrets, "socket": socket, "log_setup": silent, "make_future": _make_future}
            | {
                "Discovery": _Discovery,
                "_clients": _Open("open_clients"),
                "fork": SimpleNamespace(register=_nothing),
            }
            | {"own_host": lambda: here.process.host.encode().ljust(16, b".")},
        ),
        (driver, loop | {"Links": Links, "time": _TIME}),
        (ending, {"threading": _THREADING}),
        (staging, blocking | {"queue": _QUEUE}),
        (worker, blocking | {"make_future": _make_future, "_all": _Open("open_workers")}),
        (forming, blocking | {"secrets": secrets, "socket": socket, "client_of": _client_of}),
        (steps, {"time": _TIME}),
        (predecessor, {"FOLDER": _HostFolder(folder), "fork": SimpleNamespace(register=_nothing)}),
        (admission, {"time": _TIME, "secrets": secrets, "log_setup": silent}),
        (donation, blocking),
        (
            lobby_client,
            loop
            | {"time": _TIME, "GrpcEndpoint": Endpoint, "peers_of": _peers_of, "wait": _wait}
            | {"life_port": lambda: 1}
            | {"fork": SimpleNamespace(register=_nothing)},
        ),
    ]


def _nothing(*_: object) -> None:
    """Do nothing."""


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Replace names in the product's modules by their simulated substitutes."""
    folder = Path(tempfile.mkdtemp(prefix="simulation-"))
    before: list[tuple[Any, str, Any]] = []
    try:
        for module, names in _names(folder):
            for name, value in names.items():
                if hasattr(module, name):  # not every module uses all the blocking names
                    before.append((module, name, getattr(module, name)))
                    setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        shutil.rmtree(folder)

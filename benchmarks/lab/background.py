"""Background traffic: bursts of TCP flows between two hosts, like those of other users of a network.

    python -m benchmarks.lab.background sink ADDRESS                       receives and discards all data
    python -m benchmarks.lab.background bursts ADDRESS FLOWS ON OFF SEED   sends to a sink

In a burst FLOWS connections send as much as they can. Bursts and the pauses between them have
exponentially distributed lengths with means of ON and OFF seconds.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.lab.hosts import Host

PORT = 5301
_PIECE_BYTES = 64 << 10
_CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Bursts:
    """Amount of background traffic."""

    flows: int
    on_s: float
    off_s: float


class Background:
    """Bursts in both directions between two hosts, from construction to `close`."""

    def __init__(self, bursts: Bursts, hosts: Sequence[Host]) -> None:
        one, other = hosts
        self._processes = [_start(host, "sink", host.address) for host in (one, other)]
        numbers = f"{bursts.flows}", f"{bursts.on_s}", f"{bursts.off_s}"
        for seed, (host, to) in enumerate(((one, other), (other, one))):
            self._processes.append(_start(host, "bursts", to.address, *numbers, f"{seed}"))

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
            process.wait()


def _start(host: Host, *words: str) -> subprocess.Popen[bytes]:
    command = [*host.prefix, sys.executable, "-m", "benchmarks.lab.background", *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _sink(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_discard, args=(connection,), daemon=True).start()


def _discard(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while connection.recv(_PIECE_BYTES):
            pass


def _bursts(address: str, bursts: Bursts, seed: int) -> None:
    lengths = random.Random(seed)
    while True:
        time.sleep(lengths.expovariate(1 / bursts.off_s))
        until = time.monotonic() + lengths.expovariate(1 / bursts.on_s)
        flows = [threading.Thread(target=_flow, args=(address, until)) for _ in range(bursts.flows)]
        for flow in flows:
            flow.start()
        for flow in flows:
            flow.join()


def _flow(address: str, until: float) -> None:
    """Send until the given time. A broken connection means one flow less in this burst."""
    piece = bytes(_PIECE_BYTES)
    with (
        suppress(OSError),
        socket.create_connection((address, PORT), timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        while time.monotonic() < until:
            connection.send(piece)


def main() -> None:
    what, address, *numbers = sys.argv[1:]
    if what == "sink":
        _sink(address)
    flows, on_s, off_s, seed = numbers
    _bursts(address, Bursts(int(flows), float(on_s), float(off_s)), int(seed))


if __name__ == "__main__":
    main()

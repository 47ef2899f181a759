"""Facts of a healthy cluster, for tests to spoil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reducer.doctor.facts import Facts, Host, Path, Rate, Reducer, Worker

#: Bytes per second of every link.
RATE = 100e6
HOST = Host(
    name="host",
    cores=8.0,
    affinity=8,
    throttled=0.0,
    busy_cores=0.1,
    python="3.12.1",
    is_optimized=True,
    sums={"float32": 20e9},
    descriptors=1 << 16,
    memory_bytes=64 << 30,
    receive_buffer=32 << 20,
    send_buffer=32 << 20,
    congestion="cubic",
    backlog=4096,
)
PATH = Path(
    interface="eth0",
    source="10.0.0.1",
    link_mbit=1000,
    mss=1448,
    rtt_s=1e-4,
    answer_s=3e-4,
    answer_p99_s=2e-3,
)


def reducer(number: int, **changes: Any) -> Reducer:
    address = f"10.0.1.{number}:50051"
    healthy = Reducer(
        address=address, given=address, version="1.0", plane="tcp", free_bytes=8 << 30, path=PATH
    )
    return replace(healthy, **changes)


def worker(rank: int, count: int = 2, **changes: Any) -> Worker:
    """Return a rank that sees `count` reducers. `changes` are the worker's; `host` is a dict of changes to its host."""
    there = [reducer(number) for number in range(count)]
    host = replace(HOST, name=f"host-{rank}", **changes.pop("host", {}))
    healthy = Worker(
        rank=rank,
        host=host,
        source="dns",
        addresses=[found.address for found in there],
        reducers=there,
        clock_s=0.0,
        clock_error_s=1e-4,
    )
    return replace(healthy, **changes)


def healthy(workers: int = 4, reducers: int = 2, **changes: Any) -> Facts:
    """Return facts without a fault: links of RATE, and everything that follows from them."""
    ranks, addresses = range(workers), [reducer(number).address for number in range(reducers)]
    facts = Facts(
        workers=[worker(rank, reducers) for rank in ranks],
        alone=[Rate(rank=rank, reducer=address, bytes_per_s=RATE) for rank in ranks for address in addresses],
        incast=[
            Rate(rank=rank, reducer=address, bytes_per_s=RATE / workers)
            for rank in ranks
            for address in addresses
        ],
        together=[
            Rate(rank=rank, reducer="", bytes_per_s=RATE * min(1, reducers / workers)) for rank in ranks
        ],
    )
    return replace(facts, **changes)

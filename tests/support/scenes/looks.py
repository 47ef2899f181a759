"""Reducers' answers to a status query."""

from __future__ import annotations

from typing import Any

from reduction.model import (
    Event,
    EventKind,
    JobStatus,
    LastRank,
    Peer,
    Planes,
    Presence,
    ReducerStatus,
    WaitTimes,
)

from reducer.observe.summary import Process

MIB = 1 << 20


def job(
    name: str = "job", *, minimum: int = 0, received: int = 0, ranks: int = 3, **values: Any
) -> JobStatus:
    """Return a running job; `last` may hold tuples of rank, chunks and seconds."""
    peers = tuple(
        Peer(rank, name.encode()[:8].ljust(15) + bytes([rank]), f"host-{rank}", Presence.PRESENT)
        for rank in range(ranks)
    )
    last = tuple(LastRank(*one) for one in values.pop("last", ()))
    defaults = {
        "world_size": ranks,
        "peers": peers,
        "epoch": 1,
        "started": True,
        "open_slots": 0,
        "reserved_bytes": MIB,
        "sent_bytes": received,
        "chunk_bytes": 1024,
        "credit_bytes": MIB,
        "under_way_bytes": 0,
        "last": last,
        "waits": WaitTimes(0.0012, 0.002, 0.0145, 0.1),
        "planes": Planes(tcp=ranks),
    }
    return JobStatus(job=name, minimum=minimum, received_bytes=received, **defaults | values)


def process(*jobs: JobStatus, address: str = "10.0.0.1:50051", life: int = 1, **values: Any) -> Process:
    """Return a process that answers; `events` may hold tuples of number, time, kind, job and text."""
    events = tuple(
        Event(number, at_s, EventKind[kind], job, text)
        for number, at_s, kind, job, text in values.pop("events", ())
    )
    defaults = {
        "version": "0.1.0",
        "uptime_seconds": 100.0,
        "draining": False,
        "memory_reserved_bytes": 5 * MIB,
        "memory_limit_bytes": 1 << 34,
        "resident_bytes": 61 * MIB,
    }
    status = ReducerStatus(incarnation=life.to_bytes(16), jobs=jobs, events=events, **defaults | values)
    return Process(address, status)


def silent(address: str, reason: str = "refused") -> Process:
    """Return a process that does not answer."""
    return Process(address, None, reason)

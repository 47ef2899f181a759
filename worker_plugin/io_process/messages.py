"""The messages on the channel, as JSON. The first item of a message is its name.

    to the I/O process     begin START             the ranks have met
                           region NUMBER           memory of the rank, with its descriptor
                           forget NUMBER           that memory is gone
                           issue SEQ COLLECTIVE CONTRIBUTION RESULT
                                                   each as region, offset and bytes; region 0 is none
                           bytes SEQ OFFSET PIECE  a part of a contribution, after `need`
                           event NAME ITEM...      for the core (worker_plugin/core/events.py)
                           fell_back ADDRESS ACCESS
    to the rank            opened LINK ADDRESS     a link's reducer
                           began REDUCERS PLANES
                           need SEQ                the contribution is not in shared memory
                           bytes SEQ OFFSET PIECE  a part of a result outside shared memory, before `whole`
                           whole SEQ PROGRESS RELEASED
                                                   the result is complete
                           released SEQS           no reducer needs these contributions again
                           unfinished SEQ PROGRESS how far a failed collective had got
                           failed ERROR
                           fall_back               the ranks should start a reducer
                           note TEXT               for the recorder
                           log LOGGER LEVEL TEXT
                           over                    the communicator has ended

Each collective costs an `issue` and a `whole`, and occasionally a `released`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from reduction.client.access import Access, with_certificates
from reduction.errors import ReductionError, from_name
from reduction.model import Collective, DType, ReduceOp
from reduction.security.tls import TlsFiles
from reduction.values import from_json, to_json

from worker_plugin.core.events import Broke, Close, Connect, Event, Leave, NoFallback
from worker_plugin.core.identity import Identity
from worker_plugin.driver import Start
from worker_plugin.timeline.recorder import Progress

#: Maximum number of characters kept of an error or a log line.
TEXT_MAX = 16 * 1024


def error_to_json(error: ReductionError) -> list[str]:
    """Return an error's type and text."""
    return [type(error).__name__, str(error)[:TEXT_MAX]]


def error_from_json(item: list[str]) -> ReductionError:
    """Return the error of `error_to_json`, without its cause."""
    return from_name(*item)


def collective_to_json(collective: Collective) -> list[int]:
    """Return a collective's fields."""
    return [collective.op, collective.dtype, collective.numel, collective.fingerprint]


def collective_from_json(item: list[int]) -> Collective:
    """Return the collective of `collective_to_json`."""
    op, dtype, numel, fingerprint = item
    return Collective(ReduceOp(op), DType(dtype), numel, fingerprint)


def event_to_json(event: Event) -> list[Any]:
    """Return the fields of an event from the rank's process."""
    match event:
        case Connect() | Close():
            return [type(event).__name__]
        case Leave(issued):
            return ["Leave", issued]
        case Broke(error) | NoFallback(error):
            return [type(event).__name__, error_to_json(error)]
        case _:
            raise TypeError(f"{event} does not come from a rank's process")


def event_from_json(item: list[Any]) -> Event:
    """Return the event of `event_to_json`."""
    match item:
        case ["Connect"]:
            return Connect()
        case ["Close"]:
            return Close()
        case ["Leave", issued]:
            return Leave(issued)
        case ["Broke", error]:
            return Broke(error_from_json(error))
        case ["NoFallback", error]:
            return NoFallback(error_from_json(error))
        case _:
            raise ValueError(f"no event of a rank: {item}")


def access_to_json(access: Access) -> list[Any]:
    """Return the paths of certificates, and the metadata sent with each call."""
    tls = None if access.tls is None else dataclasses.astuple(access.tls)
    return [tls, access.metadata]


def access_from_json(item: list[Any]) -> Access:
    """Return the access of `access_to_json`. Reads the certificates again.

    Raises:
        ConfigError: the certificates cannot be used.
    """
    tls, metadata = item
    return with_certificates(
        None if tls is None else TlsFiles(*tls), tuple((key, value) for key, value in metadata)
    )


def start_to_json(start: Start) -> dict[str, Any]:
    """Return everything that a driver needs to begin."""
    return {
        "identity": to_json(start.identity),
        "addresses": start.addresses,
        "sources": start.sources,
        "transport": start.transport,
        "access": access_to_json(start.access),
        "private": {address: access_to_json(access) for address, access in start.private.items()},
    }


def start_from_json(item: dict[str, Any]) -> Start:
    """Return the start of `start_to_json`.

    Raises:
        ConfigError: certificates cannot be used.
    """
    return Start(
        from_json(Identity, item["identity"]),
        tuple(item["addresses"]),
        {text: tuple(named) for text, named in item["sources"].items()},
        item["transport"],
        access_from_json(item["access"]),
        {address: access_from_json(access) for address, access in item["private"].items()},
    )


def progress_to_json(progress: Progress) -> list[Any]:
    """Return the I/O process's record of a collective's progress, and its counts so far."""
    lanes = progress.first_push, progress.last_push, progress.first_result, progress.last_result
    counts = progress.totals.counts()
    return [
        progress.taken,
        progress.whole,
        progress.unpushed,
        counts,
        *(list(lane.items()) for lane in lanes),
    ]


def fill(progress: Progress, item: list[Any]) -> None:
    """Add the result of `progress_to_json`. All processes of a machine share the same monotonic clock."""
    progress.taken, progress.whole, progress.unpushed, counts = item[:4]
    progress.totals.take(counts)
    lanes = (dict(map(tuple, lane)) for lane in item[4:])
    progress.first_push, progress.last_push, progress.first_result, progress.last_result = lanes

"""All code that parses bytes from another machine, by name.

A target accepts any bytes and raises only if they reveal a bug. Only two kinds of remote data have no target: what gRPC
parses itself, and the process group's store, whose peers are the job's own ranks. CLUSTER_SPEC comes from the platform.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz import frames, parsers, reducer_side, worker_side
from fuzz.descriptors import REGION_BYTES, WITH_DESCRIPTOR
from fuzz.scripts import Record, encode
from reduction import wire
from reduction.model import Goodbye, Hello, Minimum, Peers, Start
from reduction.transports import tcp
from reduction.transports.shared.sharing import PLACE_BYTES
from reduction.transports.tcp import messages

CORPUS = Path(__file__).parent / "corpus"
FINDINGS = Path(__file__).parent / "findings"


@dataclass(frozen=True, slots=True)
class Target:
    """One parser, or one process in front of hostile peers."""

    run: Callable[[bytes], None]
    #: Initial inputs for when there is no corpus.
    seeds: tuple[bytes, ...]
    #: Longest input, in bytes.
    longest: int
    #: How inputs are mutated: as one "worker" or "reducer" frame, as a "script" of either, or as plain "bytes".
    shape: str


def _joined() -> list[Record]:
    """Return records with two ranks on streams 0 and 1, up to the start of the first epoch."""
    records = [Record(0, rank, frames.to_wire(frames.join(rank))) for rank in (0, 1)]
    return records + [Record(0, rank, frames.to_wire(Hello(frames.ALONE, 0))) for rank in (0, 1)]


def _sum(seq: int) -> list[Record]:
    return [Record(0, rank, frames.to_wire(frames.push(chunk, seq))) for chunk in range(3) for rank in (0, 1)]


def _session_seeds() -> tuple[bytes, ...]:
    tick, goodbyes = Record(6, 0), [Record(0, rank, frames.to_wire(Goodbye(1, 1))) for rank in (0, 1)]
    return (
        encode([*_joined(), *_sum(0), tick, *goodbyes]),
        encode([*_joined(), *_sum(0)[:3], Record(5, 1), *_joined(), Record(7, 0), *_sum(0)]),
        *(encode([*_joined(), Record(0, 0, data), Record(0, 2, data)]) for data in frames.WORKER_BYTES),
    )


def _core_seeds() -> tuple[bytes, ...]:
    welcome, configure, start = frames.REDUCER_FRAMES[0], frames.REDUCER_FRAMES[3], Start(1, 0)
    peers = next(frame for frame in frames.REDUCER_FRAMES if isinstance(frame, Peers))
    up = [Record(0, 0, frames.to_wire(frame)) for frame in (welcome, peers)]
    other = [Record(0, 1, frames.to_wire(frame)) for frame in (frames.REDUCER_FRAMES[1], peers)]
    begun = [*up, *other, Record(0, 0, frames.to_wire(configure))]
    begun += [Record(0, link, frames.to_wire(start)) for link in (0, 1)]
    results = [Record(0, link, frames.to_wire(frames.result(chunk))) for chunk in range(3) for link in (0, 1)]
    end = [Record(0, 0, frames.to_wire(Minimum(1))), Record(6, 40), Record(7, 255)]
    scripts = [
        [*begun, Record(7, 0), *results, *end],
        [Record(7, 0), *begun, *results[:2], Record(5, 0), Record(6, 30), *up, *results],
        *([*begun, Record(7, 0), Record(0, 0, data), Record(6, 200)] for data in frames.REDUCER_BYTES),
    ]
    return tuple(bytes([rank]) + encode(script) for rank in (0, 1) for script in scripts)


def _data_port_seeds() -> tuple[bytes, ...]:
    hello = frames.message(Hello(frames.ALONE, 0))
    whole = hello + b"".join(frames.message(frames.push(chunk)) for chunk in range(3))
    alone = tuple(bytes([0]) + hello + frames.message(frame) for frame in frames.WORKER_FRAMES)
    return (bytes([0]) + whole, bytes([14]) + whole, bytes([1]) + b"RDSTCP1\n" + frames.KEY, *alone)


def _data_plane_seeds() -> tuple[bytes, ...]:
    peers = frames.message(Peers((frames.PEERS[0],), False))
    begun = peers + frames.message(Start(1, 0))
    whole = begun + b"".join(frames.message(frames.result(chunk)) for chunk in range(3))
    alone = tuple(bytes([0]) + begun + frames.message(frame) for frame in frames.REDUCER_FRAMES)
    return (bytes([0]) + whole, bytes([14]) + whole, bytes([1]) + b"RDSTCP1\n" + whole, bytes([129]), *alone)


def _by_place(header: bytes, number: int, nbytes: int, offset: int) -> bytes:
    """Return a message that refers to bytes of a region instead of carrying a payload."""
    fields = list(messages.parse_header(header))
    fields[3] |= tcp.IS_PLACE
    fields[4] = PLACE_BYTES
    return messages.pack_header(*fields) + struct.pack("<IIQ", number, nbytes, offset)


def _shown(number: int, choice: int = 0) -> Record:
    return Record(WITH_DESCRIPTOR, choice, tcp.region_header(tcp.SHOW, number))


def _local_port_seeds() -> tuple[bytes, ...]:
    counter = Record(0, 0, _by_place(tcp.counter_header(PLACE_BYTES), 1, 8, 8192))
    begun = [_shown(1), counter, Record(0, 0, frames.message(Hello(frames.ALONE, 0)))]
    pushes = [frames.push(chunk) for chunk in range(3)]
    placed = [
        Record(0, 0, _by_place(tcp.push_header(push), 1, push.payload.nbytes, 1024 * push.chunk))
        for push in pushes
    ]
    sent = [Record(0, 0, frames.message(push)) for push in pushes]
    hidden = Record(0, 0, tcp.region_header(tcp.HIDE, 1))
    outside = Record(0, 0, _by_place(tcp.push_header(pushes[0]), 1, 1024, REGION_BYTES - 1000))
    return (
        encode([*begun, *placed, hidden]),
        encode([*begun, *placed[:2], hidden, placed[2]]),
        encode([*begun, *sent]),
        encode([*begun, outside]),
        encode([*begun[:2], _shown(1), *placed]),
        *(encode([_shown(1, choice), *begun[1:], *placed]) for choice in range(1, 7)),
    )


def _local_plane_seeds() -> tuple[bytes, ...]:
    peers = frames.message(Peers((frames.PEERS[0],), False))
    begun = [_shown(3), Record(0, 0, peers + frames.message(Start(1, 0)))]
    results = [frames.result(chunk) for chunk in range(3)]
    placed = [
        Record(0, 0, _by_place(tcp.result_header(result), 3, result.payload.nbytes, 1024 * result.chunk))
        for result in results
    ]
    return (
        encode([*begun, *placed]),
        encode([*begun, *placed[:1], Record(0, 0, tcp.region_header(tcp.HIDE, 3)), *placed[1:]]),
        encode([*begun, *(Record(0, 0, frames.message(result)) for result in results)]),
        encode([*begun, Record(0, 0, _by_place(tcp.counter_header(PLACE_BYTES), 3, 8, 0)), *placed]),
        *(encode([_shown(3, choice), *begun[1:], *placed]) for choice in range(1, 7)),
    )


TARGETS = {
    "worker_frame": Target(parsers.worker_frame, frames.WORKER_BYTES, 4096, "worker"),
    "reducer_frame": Target(parsers.reducer_frame, frames.REDUCER_BYTES, 4096, "reducer"),
    "status": Target(parsers.status, (wire.status_to_wire(frames.STATUS),), 4096, "bytes"),
    "lobby_request": Target(
        parsers.lobby_request, (wire.lobby_request_to_wire(frames.LOBBY),), 4096, "bytes"
    ),
    "lobby_response": Target(
        parsers.lobby_response, (wire.lobby_response_to_wire(frames.LOBBY_NEWS),), 4096, "bytes"
    ),
    "drain": Target(parsers.drain, (wire.drain_to_wire(30.0),), 256, "bytes"),
    "reducer_session": Target(reducer_side.session, _session_seeds(), 16384, "worker script"),
    "reducer_data_port": Target(reducer_side.data_port, _data_port_seeds(), 8192, "bytes"),
    "reducer_local_port": Target(reducer_side.local_port, _local_port_seeds(), 8192, "bytes"),
    "worker_core": Target(worker_side.core, _core_seeds(), 16384, "reducer script"),
    "worker_data_plane": Target(worker_side.data_plane, _data_plane_seeds(), 8192, "bytes"),
    "worker_local_plane": Target(worker_side.local_plane, _local_plane_seeds(), 8192, "bytes"),
}


def corpus(name: str) -> list[Path]:
    """Return the kept inputs of a target, in a fixed order."""
    return sorted((CORPUS / name).glob("*"))

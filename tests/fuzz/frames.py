"""Frames with few ids and few sizes, so that the frames of one stream concern those of another.

They are the seeds of the fuzzing, and mutation takes its values from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from reduction import limits, wire
from reduction.model import (
    PROTOCOL_VERSION,
    Abort,
    Ack,
    Collective,
    Configuration,
    Configure,
    DType,
    Event,
    EventKind,
    Goodbye,
    Hello,
    JobStatus,
    Join,
    LastRank,
    LinkRate,
    LobbyEntry,
    LobbyNews,
    LobbyRequest,
    Member,
    Minimum,
    Moved,
    NamedReducers,
    Peer,
    Peers,
    Place,
    Planes,
    Presence,
    Push,
    ReduceOp,
    ReducerFrame,
    ReducerStatus,
    Result,
    Start,
    Waiting,
    WaitTimes,
    Welcome,
    WorkerFrame,
)
from reduction.model.wire_sizes import SCALED_BYTES, TOPK_ENTRY_BYTES
from reduction.transports import tcp
from reduction.transports.tcp import connection, messages
from reduction.wire import checksum

from worker_plugin.elastic.membership.entries import Said
from worker_plugin.elastic.membership.lineage import Generation, Worker

INCARNATION, OTHER = b"this reducer....", b"another reducer."
LIFE, NEXT_LIFE = b"the first life..", b"the second life."
NONCES = (b"process 0.......", b"process 1.......")
KEY = b"the key of the one data offer..."
CHUNK = limits.CHUNK_BYTES_MIN
CREDIT = 4 * CHUNK
#: Three chunks, the last one short.
SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 600, 7)
SIZES = (1024, 1024, 352)
MEMBERS = (Member("a:1", INCARNATION), Member("b:1", OTHER))
ALONE = Configuration(LIFE, 1, CHUNK, MEMBERS[:1])

_HALF = Collective(ReduceOp.AVG, DType.BFLOAT16, 8, 9)
PEERS = tuple(Peer(rank, NONCES[rank], f"h{rank}", Presence.PRESENT) for rank in (0, 1))
#: The place of one rank and one reducer; the others have none.
HERE = Place(bytes(15) + b"h", 1000)
_GONE = Peer(1, NONCES[1], "h1", Presence.LOST)
_LEFT = Peer(1, NONCES[1], "h1", Presence.LEFT)


def _blocks(dtype: DType) -> Collective:
    """Return a collective of one chunk of 512 elements."""
    return Collective(ReduceOp.AVG, dtype, 512, 7)


def join(rank: int, world_size: int = 2) -> Join:
    """Return a rank's Join of the job "left"."""
    return Join("left", LIFE if rank == 0 else b"", rank, world_size, NONCES[rank], f"h{rank}", 0, CREDIT)


def push(chunk: int, seq: int = 0, epoch: int = 1) -> Push:
    """Return a push of a chunk of SUM."""
    return Push(epoch, seq, chunk, SUM, 0, memoryview(bytes(SIZES[chunk])))


def result(chunk: int, seq: int = 0, epoch: int = 1) -> Result:
    """Return the result of a chunk of SUM."""
    return Result(epoch, seq, chunk, 0, memoryview(bytes(SIZES[chunk])))


WORKER_FRAMES: tuple[WorkerFrame, ...] = (
    join(0),
    join(1),
    Join("right", NEXT_LIFE, 0, 1, NONCES[1], "h", 3, CREDIT, protocol=PROTOCOL_VERSION + 1),
    Hello(ALONE, 0),
    Hello(Configuration(LIFE, 2, 2 * CHUNK, MEMBERS), 1),
    push(0),
    push(2, seq=1, epoch=2),
    Push(1, 0, 0, _HALF, 0, memoryview(bytes(16))),
    Push(1, 1, 0, Collective(ReduceOp.SUM, DType.INT64, 0, 0), 1, memoryview(b"")),
    Hello(Configuration(LIFE, 3, CHUNK, MEMBERS[:1], checksums=True), 0),
    replace(push(0, epoch=3), crc32c=checksum.of_push(3, 0, 0, 0, push(0).collective, push(0).payload)),
    replace(join(1), wire_dtype=DType.TOPK, local_size=2),
    Hello(Configuration(LIFE, 4, CHUNK, MEMBERS, added=("c:1", "d:2")), 0),
    replace(join(1), place=HERE),
    replace(join(0), named=NamedReducers("a:1, b:1", 2)),
    replace(join(1), named=NamedReducers("a:1", 1)),
    Push(1, 0, 0, _blocks(DType.INT8_BLOCK), 0, memoryview(bytes(2 * SCALED_BYTES))),
    Push(1, 0, 0, _blocks(DType.FP8_BLOCK), 0, memoryview(bytes(2 * SCALED_BYTES))),
    Push(1, 0, 0, _blocks(DType.TOPK), 0, memoryview(bytes(3 * TOPK_ENTRY_BYTES))),
    Ack(1),
    LinkRate(1),
    Goodbye(1, 1),
    Abort(12, "rank 1 is gone"),
)
REDUCER_FRAMES: tuple[ReducerFrame, ...] = (
    Welcome(INCARNATION, CREDIT),
    Welcome(OTHER, CREDIT, 50052, KEY, (50053, 50054), HERE),
    Moved(),
    Configure(ALONE),
    Configure(Configuration(LIFE, 2, 2 * CHUNK, MEMBERS)),
    Start(1, 0),
    Start(2, 1),
    result(0),
    result(2, seq=1, epoch=2),
    Minimum(1),
    LinkRate(0),
    LinkRate(1 << 40),
    Peers(PEERS, False),
    Peers((PEERS[0], _GONE), True),
    Peers((replace(PEERS[0], place=HERE), PEERS[1]), False),
    Peers((PEERS[0], _LEFT), False),
    Configure(Configuration(LIFE, 3, CHUNK, MEMBERS[:1], checksums=True)),
    replace(result(0, epoch=3), crc32c=checksum.of_result(3, 0, 0, 0, result(0).payload)),
    Waiting(0, 1, 6.5, 1, PEERS[1:]),
    Waiting(1, 0, 0.5, 9, (_GONE,)),
    Abort(16, "damaged"),
    Abort(4, "busy"),
    Abort(12, "rank 1 is gone"),
)
#: What two workers of an elastic job report in the lobby.
_GENERATION = Generation(2, "id", (Worker(0, "00" * 16), Worker(1, "11" * 16)), (Worker(1, "11" * 16),))
_SAID = (
    Said(Worker(0, "00" * 16), "host0", "settings", 1, proposal=_GENERATION, count=3),
    Said(Worker(1, "11" * 16), "host1", "settings"),
)
LOBBY = LobbyRequest("job", bytes(16), _SAID[0].to_entry())
LOBBY_NEWS = LobbyNews(
    tuple(
        LobbyEntry(bytes.fromhex(said.worker.nonce), said.to_entry(), bool(said.worker.rank))
        for said in _SAID
    ),
    adds=True,
)
STATUS = ReducerStatus(
    version="0.1.0",
    incarnation=INCARNATION,
    uptime_seconds=1.5,
    draining=True,
    memory_reserved_bytes=1 << 20,
    memory_limit_bytes=1 << 32,
    jobs=(
        JobStatus(
            "left",
            2,
            (*PEERS, _GONE),
            1,
            True,
            1,
            2,
            3,
            4,
            5,
            1024,
            4096,
            6,
            (LastRank(1, 3, 0.5),),
            WaitTimes(0.1, 0.2, 0.3, 0.4),
            planes=Planes(1, 1, 1),
            waiting=Waiting(1, 0, 9.0, 1, (_GONE,)),
        ),
    ),
    siblings=(50053,),
    cpu_seconds=0.5,
    resident_bytes=1 << 26,
    events=(Event(1, 0.5, EventKind.LOST, "left", "rank 1 on host lost: gone"),),
)


def to_wire(frame: WorkerFrame | ReducerFrame) -> bytes:
    """Encode a frame of either side; an Abort is encoded as the reducer's."""
    if isinstance(frame, (Join, Hello, Push, Ack, Goodbye)):
        return wire.worker_frame_to_wire(frame)
    return wire.reducer_frame_to_wire(frame)


def message(frame: WorkerFrame | ReducerFrame) -> bytes:
    """Return a frame as it is sent on the TCP plane."""
    if isinstance(frame, Push):
        return tcp.push_header(frame) + frame.payload
    if isinstance(frame, Result):
        return tcp.result_header(frame) + frame.payload
    data = to_wire(frame)
    return tcp.control_header(data) + data


WORKER_BYTES = tuple(map(wire.worker_frame_to_wire, WORKER_FRAMES))
REDUCER_BYTES = tuple(map(wire.reducer_frame_to_wire, REDUCER_FRAMES))


@contextmanager
def believed_headers() -> Iterator[None]:
    """Treat headers and control frames of the TCP plane as undamaged, since mutated ones have wrong checksums."""
    checked = connection.parse_header

    def believed(data: bytes | memoryview) -> tcp.Header:
        header = tcp.Header._make(messages._FIELDS.unpack(data[: messages._FIELDS.size]))
        return header if header.kind != tcp.CONTROL else header._replace(flags=header.flags & ~tcp.HAS_CRC)

    connection.parse_header = believed
    try:
        yield
    finally:
        connection.parse_header = checked

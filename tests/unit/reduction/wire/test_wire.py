"""Every frame against the generated classes, both ways: the hand-made encoding writes their very bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction import limits, model, wire
from reduction.model import (
    NOWHERE,
    Abort,
    Ack,
    Collective,
    Configuration,
    Configure,
    DType,
    Goodbye,
    Hello,
    Join,
    Member,
    Minimum,
    Moved,
    Peer,
    Peers,
    Place,
    Presence,
    Push,
    ReduceOp,
    Result,
    Start,
    Waiting,
    Welcome,
)
from reduction.v1 import reduction_pb2 as pb

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
SECONDS = st.floats(min_value=0, allow_infinity=False)
IDS = st.binary(min_size=16, max_size=16)
#: What can be printed.
VISIBLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
HOSTS = st.text(VISIBLE, max_size=60)
PAYLOADS = st.one_of(st.just(b""), st.binary(max_size=300)).map(memoryview)
CREDITS = st.integers(limits.CHUNK_BYTES_MIN, limits.CREDIT_BYTES_MAX)
ABORTS = st.builds(Abort, code=st.integers(0, 20), message=st.text(max_size=100))

COLLECTIVES = st.builds(
    Collective,
    op=st.just(ReduceOp.SUM),
    dtype=st.sampled_from(DType),
    numel=st.integers(0, limits.NUMEL_MAX),
    fingerprint=U64,
)
MEMBERS = st.builds(
    Member,
    address=st.text(VISIBLE, min_size=1, max_size=60),
    incarnation=IDS,
    weight=st.integers(1, limits.WEIGHT_MAX),
)
CONFIGURATIONS = st.builds(
    Configuration,
    instance=IDS,
    epoch=st.integers(1, (1 << 63) - 1),
    chunk_bytes=st.integers(1, 4096).map(lambda kib: kib * limits.CHUNK_BYTES_MULTIPLE),
    members=st.lists(MEMBERS, min_size=1, max_size=5, unique_by=lambda member: member.incarnation).map(tuple),
    checksums=st.booleans(),
)
PLACES = st.builds(Place, host=st.one_of(IDS, st.just(b"")), link_mbit=st.integers(0, limits.LINK_MBIT_MAX))
JOINS = st.integers(1, limits.WORLD_SIZE_MAX).flatmap(
    lambda world_size: st.builds(
        Join,
        job=st.text(VISIBLE, min_size=1, max_size=50),
        instance=IDS,
        rank=st.integers(0, world_size - 1),
        world_size=st.just(world_size),
        nonce=IDS,
        host=st.text(VISIBLE, max_size=60),
        place=PLACES,
        minimum=U64,
        credit_bytes=CREDITS,
        wire_dtype=U32,
        local_size=st.integers(1, limits.WORLD_SIZE_MAX),
        group=st.text(VISIBLE, max_size=25),
        life_port=st.integers(0, limits.PORT_MAX),
    )
)
CRCS = st.none() | U32
PUSHES = st.builds(
    Push, epoch=U64, seq=U64, chunk=U32, collective=COLLECTIVES, held=U64, payload=PAYLOADS, crc32c=CRCS
)
RESULTS = st.builds(Result, epoch=U64, seq=U64, chunk=U32, minimum=U64, payload=PAYLOADS, crc32c=CRCS)
PEERS = st.builds(
    Peer,
    rank=st.integers(0, limits.WORLD_SIZE_MAX - 1),
    nonce=IDS,
    host=HOSTS,
    presence=st.sampled_from(Presence),
    streams=st.integers(1, 2**32 - 1),
    place=PLACES,
    has_ended=st.booleans(),
)
#: Of each kind by itself, so that none is left to chance.
WORKER_FRAMES = (
    JOINS,
    st.builds(Hello, configuration=CONFIGURATIONS, held=U64),
    PUSHES,
    st.builds(Ack, held=U64),
    st.builds(Goodbye, held=U64, minimum=U64),
    st.just(Moved()),
    ABORTS,
)
WAITS = st.builds(
    Waiting,
    seq=U64,
    chunk=U32,
    waited_s=SECONDS,
    count=st.integers(limits.WAITING_RANKS_MAX, limits.WORLD_SIZE_MAX),
    missing=st.lists(PEERS, max_size=limits.WAITING_RANKS_MAX).map(tuple),
    epoch=U64,
)
REDUCER_FRAMES = (
    st.builds(Welcome, incarnation=IDS, credit_bytes=CREDITS),
    st.builds(
        Welcome,
        incarnation=IDS,
        credit_bytes=CREDITS,
        data_port=st.integers(1, 65535),
        data_key=st.binary(min_size=limits.DATA_KEY_BYTES, max_size=limits.DATA_KEY_BYTES),
        place=PLACES,
    ),
    st.just(Moved()),
    st.builds(Configure, configuration=CONFIGURATIONS),
    st.builds(Start, epoch=U64, minimum=U64),
    RESULTS,
    st.builds(Minimum, minimum=U64),
    st.builds(Peers, peers=st.lists(PEERS, max_size=4).map(tuple), draining=st.booleans()),
    WAITS,
    ABORTS,
)
JOBS = st.builds(
    model.JobStatus,
    job=st.text(VISIBLE, max_size=20),
    world_size=U32,
    peers=st.lists(PEERS, max_size=3).map(tuple),
    epoch=U64,
    started=st.booleans(),
    minimum=U64,
    open_slots=U64,
    reserved_bytes=U64,
    received_bytes=U64,
    sent_bytes=U64,
    chunk_bytes=U32,
    credit_bytes=U64,
    under_way_bytes=U64,
    last=st.lists(st.builds(model.LastRank, rank=U32, chunks=U64, waited_s=SECONDS), max_size=3).map(tuple),
    waits=st.builds(model.WaitTimes, p50_s=SECONDS, p90_s=SECONDS, p99_s=SECONDS, max_s=SECONDS),
    group=st.text(VISIBLE, max_size=20),
    planes=st.builds(model.Planes, grpc=U32, tcp=U32, shared=U32),
    waiting=st.none() | WAITS,
)
PRINTABLE = st.text(max_size=20).filter(str.isprintable)
EVENTS = st.builds(
    model.Event,
    number=U64,
    at_s=SECONDS,
    kind=st.sampled_from(model.EventKind),
    job=PRINTABLE,
    text=PRINTABLE,
)
ENDED = st.builds(
    model.EndedJob,
    job=PRINTABLE,
    group=PRINTABLE,
    world_size=U32,
    id=IDS,
    outcome=st.sampled_from(model.Outcome),
    collectives=U64,
    received_bytes=U64,
    sent_bytes=U64,
    seconds=SECONDS,
    ago_s=SECONDS,
    waited_for=U32,
    waited_s=SECONDS,
)
STATUSES = st.builds(
    model.ReducerStatus,
    version=st.text(VISIBLE, max_size=20),
    incarnation=IDS,
    uptime_seconds=st.floats(allow_nan=False),
    draining=st.booleans(),
    memory_reserved_bytes=U64,
    memory_limit_bytes=U64,
    jobs=st.lists(JOBS, max_size=2).map(tuple),
    cpu_seconds=SECONDS,
    resident_bytes=U64,
    events=st.lists(EVENTS, max_size=2).map(tuple),
    ended=st.lists(ENDED, max_size=2).map(tuple),
)


def fill(message, value):
    """Copy a value of the model to the generated message whose fields have the same names, or nearly so."""
    for descriptor in message.DESCRIPTOR.fields:
        name = "has_ended" if (type(value), descriptor.name) == (Peer, "ended") else descriptor.name
        ours = getattr(value, name)
        theirs = getattr(message, descriptor.name)
        if descriptor.is_repeated:
            for item in ours:
                fill(theirs.add(), item)
        elif ours is None or ours == NOWHERE:
            assert descriptor.has_presence
        elif descriptor.message_type is not None:
            theirs.SetInParent()
            fill(theirs, ours)
        else:
            setattr(message, descriptor.name, bytes(ours) if isinstance(ours, memoryview) else ours)


def generated(cls, frame):
    """Return what the generated class makes of a frame of the model."""
    message = cls()
    name = type(frame).__name__.lower()
    body = getattr(message, name)
    body.SetInParent()
    fill(body, frame.configuration if isinstance(frame, Configure) else frame)
    return message


# ---- against the generated classes ----


@pytest.mark.parametrize("frames", WORKER_FRAMES)
@given(data=st.data())
@settings(max_examples=25)
def test_worker_frames_are_the_generated_classes_own_bytes(frames, data):
    frame = data.draw(frames)
    message = generated(pb.WorkerFrame, frame)
    assert wire.worker_frame_to_wire(frame) == message.SerializeToString()
    assert wire.worker_frame_from_wire(message.SerializeToString()) == frame


@pytest.mark.parametrize("frames", REDUCER_FRAMES)
@given(data=st.data())
@settings(max_examples=25)
def test_reducer_frames_are_the_generated_classes_own_bytes(frames, data):
    frame = data.draw(frames)
    message = generated(pb.ReducerFrame, frame)
    assert wire.reducer_frame_to_wire(frame) == message.SerializeToString()
    assert wire.reducer_frame_from_wire(message.SerializeToString()) == frame


@given(STATUSES)
def test_status_is_the_generated_classes_own_bytes(status):
    message = pb.StatusResponse()
    fill(message, status)
    assert wire.status_to_wire(status) == message.SerializeToString()
    assert wire.status_from_wire(message.SerializeToString()) == status


def test_a_welcome_does_not_show_its_key():
    # It lets whoever has it take over the stream, and frames get into logs.
    key = bytes(range(limits.DATA_KEY_BYTES))
    assert "data_key" not in repr(Welcome(bytes(16), 1, 50052, key))


@pytest.mark.parametrize("nbytes", [0, 1, 127, 128, 16383, 16384, limits.CHUNK_BYTES_MAX])
def test_payloads_at_every_length_of_their_length(nbytes):
    payload = memoryview(bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]
    push = Push(1, 2, 3, Collective(ReduceOp.SUM, DType.FLOAT32, 9, 8), 4, payload)
    result = Result(1, 2, 3, 4, payload)
    assert pb.WorkerFrame.FromString(wire.worker_frame_to_wire(push)).push.payload == payload
    assert pb.ReducerFrame.FromString(wire.reducer_frame_to_wire(result)).result.payload == payload
    assert wire.worker_frame_from_wire(wire.worker_frame_to_wire(push)) == push
    assert wire.reducer_frame_from_wire(wire.reducer_frame_to_wire(result)) == result
    assert len(wire.worker_frame_to_wire(push)) <= limits.FRAME_BYTES_MAX


def test_a_payload_is_a_view_of_the_received_bytes():
    data = wire.reducer_frame_to_wire(Result(1, 2, 3, 4, memoryview(b"payload")))
    assert wire.reducer_frame_from_wire(data).payload.obj is data


def test_a_payload_of_a_typed_view_counts_bytes_not_elements():
    payload = memoryview(bytes(12)).cast("I")
    data = wire.reducer_frame_to_wire(Result(1, 2, 3, 4, payload))
    assert wire.reducer_frame_from_wire(data).payload == bytes(12)

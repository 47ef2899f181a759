"""Messages of the schema: encoding and decoding them, and strategies for their values."""

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st
from reduction import limits, model, wire
from reduction.errors import MalformedFrame
from reduction.model import Collective, Configure, DType, Moved, Push, ReduceOp, Result, Welcome
from reduction.v1 import reduction_pb2 as pb

CODINGS = {
    pb.WorkerFrame: (wire.worker_frame_to_wire, wire.worker_frame_from_wire),
    pb.ReducerFrame: (wire.reducer_frame_to_wire, wire.reducer_frame_from_wire),
    pb.StatusResponse: (wire.status_to_wire, wire.status_from_wire),
    pb.LobbyRequest: (wire.lobby_request_to_wire, wire.lobby_request_from_wire),
    pb.LobbyResponse: (wire.lobby_response_to_wire, wire.lobby_response_from_wire),
}


def decode(message):
    """Return the result of decoding a generated message's bytes."""
    return CODINGS[type(message)][1](message.SerializeToString())


def decoded(cls, data):
    """Return the decoded bytes, or None if they are malformed."""
    try:
        return CODINGS[cls][1](data)
    except MalformedFrame:
        return None


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
SECONDS = st.floats(min_value=0, allow_infinity=False)
IDS = st.binary(min_size=16, max_size=16)
#: Printable characters.
VISIBLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
HOSTS = st.text(VISIBLE, max_size=60)
NAMES = st.text(VISIBLE, min_size=1, max_size=50)
PAYLOADS = st.one_of(st.just(b""), st.binary(max_size=300)).map(memoryview)
CREDITS = st.integers(limits.CHUNK_BYTES_MIN, limits.CREDIT_BYTES_MAX)
PORTS = st.integers(1, limits.PORT_MAX)
CRCS = st.none() | U32
#: Possible values of a schema field, by its type.
ANY = {
    FieldDescriptor.TYPE_UINT32: U32,
    FieldDescriptor.TYPE_UINT64: U64,
    FieldDescriptor.TYPE_FIXED64: U64,
    FieldDescriptor.TYPE_DOUBLE: SECONDS,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: HOSTS,
    FieldDescriptor.TYPE_BYTES: IDS,
}


def some(strategy, most=3):
    return st.lists(strategy, max_size=most).map(tuple)


def values(cls, message=None, **given):
    """Return instances of a model class, with any values for the fields that are not given."""
    schema = (message or getattr(pb, cls.__name__)).DESCRIPTOR.fields
    kinds = {
        name_of(cls, field): ANY[field.type]
        for field in schema
        if not field.is_repeated and field.type in ANY
    }
    return st.builds(cls, **kinds | given)


def name_of(cls, field):
    """Return the model's name of a schema field."""
    ours = cls.__dataclass_fields__
    return next(name for name in (field.name, f"is_{field.name}", f"has_{field.name}") if name in ours)


PLACES = st.builds(model.Place, host=IDS | st.just(b""), link_mbit=st.integers(0, limits.LINK_MBIT_MAX))
COLLECTIVES = values(
    Collective, op=st.just(ReduceOp.SUM), dtype=st.sampled_from(DType), numel=st.integers(0, limits.NUMEL_MAX)
)
MEMBERS = values(model.Member, address=NAMES, weight=st.integers(1, limits.WEIGHT_MAX))
CONFIGURATIONS = values(
    model.Configuration,
    epoch=st.integers(1, limits.EPOCH_MAX),
    chunk_bytes=st.integers(1, 4096).map(lambda kib: kib * limits.CHUNK_BYTES_MULTIPLE),
    members=st.lists(MEMBERS, min_size=1, max_size=5, unique_by=lambda member: member.incarnation).map(tuple),
    added=some(NAMES),
)
NAMED = values(model.NamedReducers, text=NAMES, count=st.integers(1, limits.ADDRESSES_MAX))
JOINS = st.integers(1, limits.WORLD_SIZE_MAX).flatmap(
    lambda world_size: values(
        model.Join,
        protocol=st.just(model.PROTOCOL_VERSION),
        job=NAMES,
        rank=st.integers(0, world_size - 1),
        world_size=st.just(world_size),
        place=PLACES,
        credit_bytes=CREDITS,
        local_size=st.integers(1, limits.WORLD_SIZE_MAX),
        group=st.text(VISIBLE, max_size=25),
        run=st.text(VISIBLE, max_size=50),
        life_port=PORTS,
        named=st.none() | NAMED,
    )
)
PUSHES = values(Push, collective=COLLECTIVES, payload=PAYLOADS, crc32c=CRCS)
RESULTS = values(Result, payload=PAYLOADS, crc32c=CRCS)
ABORTS = st.builds(model.Abort, code=st.integers(0, 20), message=st.text(max_size=100))
PEERS = values(
    model.Peer,
    rank=st.integers(0, limits.WORLD_SIZE_MAX - 1),
    presence=st.sampled_from(model.Presence),
    place=PLACES,
)
WAITS = values(
    model.Waiting,
    count=st.integers(limits.WAITING_RANKS_MAX, limits.WORLD_SIZE_MAX),
    missing=some(PEERS, limits.WAITING_RANKS_MAX),
)
WELCOMES = values(
    Welcome,
    credit_bytes=CREDITS,
    data_port=PORTS,
    data_key=st.binary(min_size=limits.DATA_KEY_BYTES, max_size=limits.DATA_KEY_BYTES),
    siblings=some(PORTS),
    place=PLACES,
)
JOBS = values(
    model.JobStatus,
    peers=some(PEERS),
    last=some(values(model.LastRank)),
    waits=values(model.WaitTimes, pb.Waits),
    planes=values(model.Planes),
    waiting=st.none() | WAITS,
)
EVENTS = values(model.Event, kind=st.sampled_from(model.EventKind))
ENDED = values(model.EndedJob, outcome=st.sampled_from(model.Outcome))
ENTRIES = values(model.LobbyEntry)
#: Each kind has its own strategy, so that none is left to chance.
MESSAGES = [
    (pb.WorkerFrame, JOINS),
    (pb.WorkerFrame, values(model.Hello, configuration=CONFIGURATIONS)),
    (pb.WorkerFrame, PUSHES),
    (pb.WorkerFrame, values(model.Ack)),
    (pb.WorkerFrame, values(model.LinkRate)),
    (pb.WorkerFrame, values(model.Goodbye)),
    (pb.WorkerFrame, st.just(Moved())),
    (pb.WorkerFrame, ABORTS),
    (pb.ReducerFrame, st.builds(Welcome, incarnation=IDS, credit_bytes=CREDITS)),
    (pb.ReducerFrame, WELCOMES),
    (pb.ReducerFrame, st.just(Moved())),
    (pb.ReducerFrame, st.builds(Configure, CONFIGURATIONS)),
    (pb.ReducerFrame, values(model.Start)),
    (pb.ReducerFrame, RESULTS),
    (pb.ReducerFrame, values(model.Minimum)),
    (pb.ReducerFrame, values(model.LinkRate)),
    (pb.ReducerFrame, values(model.Peers, peers=some(PEERS, 4))),
    (pb.ReducerFrame, WAITS),
    (pb.ReducerFrame, ABORTS),
    (
        pb.StatusResponse,
        values(
            model.ReducerStatus,
            pb.StatusResponse,
            jobs=some(JOBS, 2),
            siblings=some(U32),
            events=some(EVENTS, 2),
            ended=some(ENDED, 2),
        ),
    ),
    (pb.LobbyRequest, values(model.LobbyRequest, job=NAMES, life_port=PORTS)),
    (pb.LobbyResponse, values(model.LobbyNews, pb.LobbyResponse, entries=some(ENTRIES))),
]

"""Every field's limit: the edge passes, and one step beyond it is a MalformedFrame that names field and value."""

import math
import re

import pytest
from reduction import limits, wire
from reduction.errors import MalformedFrame, from_code, from_name
from reduction.model import PROTOCOL_VERSION, Abort, DType, Join, Moved, Peer, Presence, ReduceOp, Welcome
from reduction.v1 import reduction_pb2 as pb
from reduction.wire import payload as payloads
from unit.reduction.wire.messages import CODINGS, decode, varint

ID = b"0123456789abcdef"
KEY = bytes(range(limits.DATA_KEY_BYTES))


def join(**changes):
    fields = {
        "protocol": PROTOCOL_VERSION,
        "job": "job",
        "instance": ID,
        "rank": 1,
        "world_size": 2,
        "nonce": ID,
        "host": "host",
        "credit_bytes": limits.CREDIT_BYTES_ASKED,
        "local_size": 1,
    }
    return pb.WorkerFrame(join=pb.Join(**fields | changes))


def named(**changes):
    return join(named=pb.NamedReducers(**{"text": "a:1", "count": 1} | changes))


def hello(**changes):
    fields = {"instance": ID, "epoch": 1, "chunk_bytes": 1024, "members": members(1)}
    return pb.WorkerFrame(hello=pb.Hello(configuration=pb.Configuration(**fields | changes)))


def members(count, **changes):
    return [
        pb.Member(**{"address": "a:1", "incarnation": index.to_bytes(16, "big"), "weight": 1} | changes)
        for index in range(count)
    ]


def push(*, payload=b"", **changes):
    fields = {"op": ReduceOp.SUM, "dtype": DType.FLOAT32, "numel": 1}
    return pb.WorkerFrame(push=pb.Push(collective=pb.Collective(**fields | changes), payload=payload))


def welcome(**changes):
    fields = {"incarnation": ID, "credit_bytes": 1, "data_port": 50052, "data_key": KEY}
    return pb.ReducerFrame(welcome=pb.Welcome(**fields | changes))


def peers(count=1, **changes):
    fields = {"rank": 0, "nonce": ID, "host": "host", "presence": Presence.PRESENT}
    return [pb.Peer(**fields | changes)] * count


def seen(**changes):
    return pb.ReducerFrame(peers=pb.Peers(peers=peers(**changes)))


def waiting(**changes):
    return pb.ReducerFrame(waiting=pb.Waiting(**{"waited_s": 1.0, "count": 8, "missing": peers()} | changes))


def event(**changes):
    return pb.Event(**{"number": 1, "kind": 1, "job": "job", "text": "text"} | changes)


def events(**changes):
    return pb.StatusResponse(events=[event(**changes)])


def lobby(**changes):
    return pb.LobbyRequest(**{"job": "job", "nonce": ID, "entry": b"x"} | changes)


def news(count=1, **changes):
    return pb.LobbyResponse(entries=[pb.LobbyEntry(**{"nonce": ID, "entry": b"x"} | changes)] * count)


def text(nbytes):
    """Return a string of this many bytes, most of whose characters take two."""
    return "ü" * (nbytes // 2) + "j" * (nbytes % 2)


KIB, MIB = 1 << 10, 1 << 20
ENDED = pb.EndedJob(outcome=1)
#: The name in the error, a message whose field has a value, and the minimum and maximum value.
RANGES = [
    ("Join.world_size", lambda n: join(rank=0, world_size=n), 1, 4096),
    ("length of Join.job", lambda n: join(job=text(n)), 1, 200),
    ("length of Join.host", lambda n: join(host=text(n)), 0, 255),
    ("length of Join.group", lambda n: join(group=text(n)), 0, 100),
    ("length of Join.run", lambda n: join(run=text(n)), 0, 200),
    ("length of Join.named.text", lambda n: named(text=text(n)), 1, 600),
    ("Join.named.count", lambda n: named(count=n), 1, 4096),
    ("Join.credit_bytes", lambda n: join(credit_bytes=n), KIB, 1 << 30),
    ("Join.life_port", lambda n: join(life_port=n), 0, 65535),
    ("Configuration.epoch", lambda n: hello(epoch=n), 1, (1 << 63) - 1),
    ("number of Configuration.members", lambda n: hello(members=members(n)), 1, 1024),
    ("length of Member.address", lambda n: hello(members=members(1, address=text(n))), 1, 255),
    ("Member.weight", lambda n: hello(members=members(1, weight=n)), 1, 65535),
    ("number of Configuration.added", lambda n: hello(added=["a:1"] * n), 0, 128),
    ("length of Configuration.added", lambda n: hello(added=[text(n)]), 1, 255),
    ("Push.collective.numel", lambda n: push(numel=n), 0, limits.NUMEL_MAX),
    ("length of Push.payload", lambda n: push(payload=bytes(n)), 0, 4 * MIB),
    ("Welcome.credit_bytes", lambda n: welcome(credit_bytes=n), 1, 1 << 30),
    ("Welcome.data_port", lambda n: welcome(data_port=n), 0, 65535),
    ("length of Welcome.data_key", lambda n: welcome(data_key=bytes(n)), 32, 32),
    ("number of Welcome.siblings", lambda n: welcome(siblings=[1] * n), 0, 255),
    ("Welcome.siblings", lambda n: welcome(siblings=[50053, n]), 1, 65535),
    ("Welcome.place.link_mbit", lambda n: welcome(place=pb.Place(host=ID, link_mbit=n)), 0, 10**8),
    ("length of Result.payload", lambda n: pb.ReducerFrame(result=pb.Result(payload=bytes(n))), 0, 4 * MIB),
    ("Peers.peers", lambda n: seen(count=n), 0, 4096),
    ("Peer.rank", lambda n: seen(rank=n), 0, 4095),
    ("length of Peer.host", lambda n: seen(host=text(n)), 0, 255),
    ("Waiting.count", lambda n: waiting(count=n), 1, 4096),
    ("number of Waiting.missing", lambda n: waiting(missing=peers(n)), 0, 8),
    ("number of StatusResponse.events", lambda n: pb.StatusResponse(events=[event()] * n), 0, 64),
    ("number of StatusResponse.ended", lambda n: pb.StatusResponse(ended=[ENDED] * n), 0, 16),
    ("length of Event.text", lambda n: events(text="ü" * n), 0, 200),  # of this many characters
    ("length of Event.job", lambda n: events(job=text(n)), 0, 316),
    ("length of LobbyRequest.job", lambda n: lobby(job=text(n)), 1, 200),
    ("length of LobbyRequest.entry", lambda n: lobby(entry=bytes(n)), 1, limits.LOBBY_ENTRY_BYTES_MAX),
    ("LobbyRequest.life_port", lambda n: lobby(life_port=n), 0, 65535),
    ("number of LobbyResponse.entries", lambda n: news(n), 0, limits.LOBBY_ENTRIES_MAX),
    ("length of LobbyEntry.entry", lambda n: news(entry=bytes(n)), 1, limits.LOBBY_ENTRY_BYTES_MAX),
]


@pytest.mark.parametrize(("name", "make", "least", "most"), RANGES, ids=[name for name, *_ in RANGES])
def test_a_value_at_the_edge_passes_and_one_beyond_it_is_refused_by_name(name, make, least, most):
    for value in (least, most):
        message = make(value)
        assert CODINGS[type(message)][0](decode(message)) == message.SerializeToString()
    for value in (least - 1, most + 1):
        if value >= 0:
            with pytest.raises(MalformedFrame) as caught:
                decode(make(value))
            assert str(caught.value) == f"{name} is {value}; allowed: {least} to {most}"


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("Join.nonce", lambda value: join(nonce=value)),
        ("Join.instance", lambda value: join(instance=value)),
        ("Configuration.instance", lambda value: hello(instance=value)),
        ("Member.incarnation", lambda value: hello(members=members(1, incarnation=value))),
        ("Welcome.incarnation", lambda value: welcome(incarnation=value)),
        ("Welcome.place.host", lambda value: welcome(place=pb.Place(host=value))),
        ("Peer.nonce", lambda value: seen(nonce=value)),
        ("Peer.nonce", lambda value: waiting(missing=peers(nonce=value))),
        ("Peer.nonce", lambda value: pb.StatusResponse(jobs=[pb.JobStatus(peers=peers(nonce=value))])),
        ("LobbyRequest.nonce", lambda value: lobby(nonce=value)),
        ("LobbyEntry.nonce", lambda value: news(nonce=value)),
    ],
)
def test_an_id_has_16_bytes(field, make):
    for value in (ID[:15], ID + b"x"):
        with pytest.raises(MalformedFrame, match=f"^{field} has {len(value)} bytes; it must have 16"):
            decode(make(value))


def test_only_rank_0_must_know_the_instance():
    assert decode(join(instance=b"")).instance == b""
    with pytest.raises(MalformedFrame, match=r"Join.instance has 0 bytes"):
        decode(join(rank=0, instance=b""))


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("Join.job", lambda value: join(job=value)),
        ("Join.host", lambda value: join(host=value)),
        ("Join.group", lambda value: join(group=value)),
        ("Join.run", lambda value: join(run=value)),
        ("Join.named.text", lambda value: named(text=value)),
        ("Member.address", lambda value: hello(members=members(1, address=value))),
        ("Configuration.added", lambda value: hello(added=[value])),
        ("LobbyRequest.job", lambda value: lobby(job=value)),
    ],
)
def test_strings_must_be_printable(field, make):
    for value in ("a\nb", "\x1b[2J", "0\t1"):
        with pytest.raises(MalformedFrame, match=re.escape(f"{field} is {value!r}, which has characters")):
            decode(make(value))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (join(rank=2), "Join.rank is 2; it must be below the world size 2"),
        (join(local_size=4097), "Join.local_size is 4097; allowed: 0 to 4096"),
        (hello(chunk_bytes=512), "Configuration.chunk_bytes is 512; allowed: 1024 to 4194304"),
        (hello(chunk_bytes=5 << 20), "Configuration.chunk_bytes is 5242880; allowed:"),
        (hello(chunk_bytes=1025), "Configuration.chunk_bytes is 1025; it must be a multiple of 1024"),
        (hello(members=members(1) * 2), "Configuration.members names a reducer twice"),
        (push(op=0), "Collective.op is 0; this version knows 1 SUM, 2 AVG"),
        (push(op=6), "Collective.op is 6; this version knows 1 SUM, 2 AVG"),
        (push(dtype=0), "Collective.dtype is 0; this version knows 1 FLOAT32, "),
        (push(dtype=13), "Collective.dtype is 13; this version knows 1 FLOAT32, "),
        (push(op=ReduceOp.AVG, dtype=DType.INT32), "Push.collective asks for AVG of INT32"),
        (push(op=ReduceOp.AVG, dtype=DType.INT64), "Push.collective asks for AVG of INT64"),
        (pb.WorkerFrame(push=pb.Push(seq=1)), "Collective.op is 0"),
        (pb.ReducerFrame(configure=pb.Configuration(instance=ID)), "Configuration.epoch is 0"),
        (seen(presence=0), "Peer.presence is 0; this version knows 1 PRESENT, 2 LOST, 3 LEFT"),
        (waiting(waited_s=-1.0), "Waiting.waited_s is -1.0; it must be 0 or more seconds"),
        (waiting(waited_s=math.nan), "Waiting.waited_s is nan"),
        (waiting(waited_s=math.inf), "Waiting.waited_s is inf"),
        (events(kind=0), "Event.kind is 0; this version knows"),
        (events(kind=99), "Event.kind is 99; this version knows"),
    ],
)
def test_other_invalid_values_are_refused(message, text):
    with pytest.raises(MalformedFrame) as caught:
        decode(message)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("chunk_bytes", [limits.CHUNK_BYTES_MIN, limits.CHUNK_BYTES_MAX])
def test_the_extreme_chunk_sizes_pass(chunk_bytes):
    assert decode(hello(chunk_bytes=chunk_bytes)).configuration.chunk_bytes == chunk_bytes


@pytest.mark.parametrize(("said", "local_size"), [(0, 1), (limits.WORLD_SIZE_MAX, limits.WORLD_SIZE_MAX)])
def test_a_join_without_a_local_size_stands_for_one_process(said, local_size):
    assert decode(join(local_size=said)).local_size == local_size


def test_a_join_of_another_version_is_not_judged_by_this_versions_limits():
    other = PROTOCOL_VERSION + 1
    frame = decode(join(protocol=other, world_size=0, rank=9, nonce=b"", job=""))
    assert frame == Join("", ID, 9, 0, b"", "host", 0, limits.CREDIT_BYTES_ASKED, protocol=other)


def test_without_a_data_port_no_key_is_needed():
    assert decode(welcome(data_port=0, data_key=b"")) == Welcome(ID, 1, 0, b"")


def test_moved_has_a_number_of_its_own_in_each_direction():
    assert decode(pb.ReducerFrame(moved=pb.Moved())) == Moved()
    with pytest.raises(MalformedFrame, match="no body that this version knows"):
        wire.worker_frame_from_wire(wire.reducer_frame_to_wire(Moved()))


def test_long_abort_messages_are_cut_on_both_sides():
    long = "x" * (limits.MESSAGE_CHARS_MAX + 1)
    short = Abort(7, "x" * limits.MESSAGE_CHARS_MAX)
    sent = wire.worker_frame_to_wire(Abort(7, long))
    assert pb.WorkerFrame.FromString(sent).abort.message == short.message
    assert decode(pb.ReducerFrame(abort=pb.Abort(code=7, message=long))) == short


def test_an_unknown_abort_code_is_kept():
    assert decode(pb.ReducerFrame(abort=pb.Abort(code=99, message="new"))) == Abort(99, "new")


def test_the_largest_frames_of_each_kind_fit_the_transports_limit():
    crowd = [
        pb.Peer(rank=rank, nonce=ID, host="h" * limits.HOST_BYTES_MAX, presence=3, streams=2**32 - 1)
        for rank in range(limits.WORLD_SIZE_MAX)
    ]
    everybody = pb.ReducerFrame(peers=pb.Peers(peers=crowd, draining=True)).SerializeToString()
    address = "a" * limits.HOST_BYTES_MAX
    widest = members(limits.MEMBERS_MAX, address=address, weight=65535)
    greeting = hello(members=widest, added=[address] * limits.ADDED_MAX).SerializeToString()
    chunk = push(payload=bytes(limits.CHUNK_BYTES_MAX), numel=limits.NUMEL_MAX).SerializeToString()
    assert max(map(len, (everybody, greeting, chunk))) <= limits.FRAME_BYTES_MAX
    assert len(everybody) <= limits.REDUCER_CONTROL_BYTES_MAX
    assert len(greeting) <= limits.WORKER_CONTROL_BYTES_MAX <= limits.REDUCER_CONTROL_BYTES_MAX
    assert wire.reducer_frame_from_wire(everybody).peers[-1] == Peer(
        4095, ID, "h" * 255, Presence.LEFT, 2**32 - 1
    )
    asked = lobby(job="j" * 200, entry=bytes(limits.LOBBY_ENTRY_BYTES_MAX)).SerializeToString()
    assert len(asked) <= limits.LOBBY_REQUEST_BYTES_MAX


# ---- cost of decoding: every two-byte field would become an object of 62 bytes ----


@pytest.mark.parametrize(
    ("cls", "field", "kind", "limit"),
    [
        (pb.WorkerFrame, field, "worker frame that is not a Push", limits.WORKER_CONTROL_BYTES_MAX)
        for field in (1, 2, 4, 5, 6)
    ]
    + [
        (pb.ReducerFrame, field, "reducer frame that is not a Result", limits.REDUCER_CONTROL_BYTES_MAX)
        for field in (1, 2, 3, 5, 6, 7, 8)
    ],
)
def test_a_frame_without_a_payload_is_small(cls, field, kind, limit):
    _, from_wire = CODINGS[cls]
    with pytest.raises(MalformedFrame, match=f"length of a {kind} is {limit + 1}; allowed: 0 to {limit}"):
        from_wire(sized(field, limit + 1))
    with pytest.raises(MalformedFrame, match="no body that this version knows"):
        from_wire(sized(99, limit))


def test_a_push_with_very_many_fields_is_left_to_the_generated_parser():
    # Walking them one by one kept the reducer's only thread busy for seconds.
    small = push(payload=b"1234").push.SerializeToString()
    few = small + b"\x30\x00" * (limits.FRAME_FIELDS_MAX - 2)
    more = few + b"\x30\x00"
    assert payloads.split(framed(few), 3) is not None
    assert payloads.split(framed(more), 3) is None
    assert wire.worker_frame_from_wire(framed(more)) == wire.worker_frame_from_wire(framed(few))
    with pytest.raises(MalformedFrame, match="length of a worker frame that is not a Push is"):
        wire.worker_frame_from_wire(framed(small + b"\x30\x00" * limits.WORKER_CONTROL_BYTES_MAX))


def test_a_status_with_more_jobs_than_any_reducer_has_is_malformed():
    most = limits.STATUS_JOBS_MAX
    assert len(wire.status_from_wire(b"\x3a\x00" * most).jobs) == most
    with pytest.raises(MalformedFrame, match=f"number of StatusResponse.jobs is {most + 1}; allowed: 0 to"):
        wire.status_from_wire(b"\x3a\x00" * (most + 1))


@pytest.mark.parametrize("timeout_s", [0.0, 30.0, limits.DRAIN_S_MAX])
def test_drain_timeouts_survive_a_round_trip(timeout_s):
    assert wire.drain_from_wire(wire.drain_to_wire(timeout_s)) == timeout_s


@pytest.mark.parametrize("timeout_s", [-1.0, limits.DRAIN_S_MAX + 1, float("inf"), float("nan")])
def test_invalid_drain_timeouts_are_refused(timeout_s):
    with pytest.raises(MalformedFrame, match=r"DrainResponse.timeout_seconds is .*; allowed: 0 to 604800"):
        wire.drain_from_wire(wire.drain_to_wire(timeout_s))


def test_text_from_a_lying_reducer_cannot_move_the_cursor():
    bad, good = "x\x1b]0;t\x07\n\u202ey", r"x\x1b]0;t\x07\n\u202ey"
    liar = peers(host=bad)
    job = pb.JobStatus(job=bad, group=bad, peers=liar)
    status = decode(pb.StatusResponse(version=bad, jobs=[job], events=[event(job=bad, text=bad)]))
    shown = status.jobs[0]
    texts = status.version, shown.job, shown.group, shown.peers[0].host
    assert (*texts, status.events[0].job, status.events[0].text) == (good,) * 6
    assert decode(pb.ReducerFrame(peers=pb.Peers(peers=liar))).peers[0].host == good
    assert str(from_code(3, bad)) == str(from_name("ResourceExhausted", bad)) == good


@pytest.mark.parametrize(("cls", "data"), [(cls, b"\xff\xff\xff") for cls in CODINGS])
def test_bytes_that_are_not_a_message(cls, data):
    with pytest.raises(MalformedFrame, match=f"3 bytes are not a {cls.DESCRIPTOR.name}"):
        CODINGS[cls][1](data)


def framed(inside):
    """Return a WorkerFrame of a Push with these bytes inside."""
    return b"\x1a" + varint(len(inside)) + inside


def sized(field, size):
    """Return a frame of exactly `size` bytes that is one field of zeros."""
    tag = varint(field << 3 | 2)
    head = next(head for n in range(1, 6) if len(head := tag + varint(size - len(tag) - n)) == len(tag) + n)
    return head + bytes(size - len(head))

"""Every field's limit: the edge passes, one step further is MalformedFrame and names field and value."""

import math

import pytest
from reduction import limits, wire
from reduction.errors import MalformedFrame, from_code, from_name
from reduction.model import PROTOCOL_VERSION, Abort, DType, Join, Moved, Peer, Presence, ReduceOp, Welcome
from reduction.v1 import reduction_pb2 as pb
from reduction.wire import payload as payloads

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


def configuration(**changes):
    fields = {"instance": ID, "epoch": 1, "chunk_bytes": 1024, "members": [member()]}
    return pb.WorkerFrame(hello=pb.Hello(configuration=pb.Configuration(**fields | changes)))


def member(**changes):
    return pb.Member(**{"address": "a:1", "incarnation": ID, "weight": 1} | changes)


def members(count):
    return [member(incarnation=index.to_bytes(16, "big")) for index in range(count)]


def push(*, payload=b"", **changes):
    fields = {"op": ReduceOp.SUM, "dtype": DType.FLOAT32, "numel": 1}
    return pb.WorkerFrame(push=pb.Push(collective=pb.Collective(**fields | changes), payload=payload))


def peer(**changes):
    fields = {"rank": 0, "nonce": ID, "host": "host", "presence": Presence.PRESENT}
    return pb.Peers(peers=[pb.Peer(**fields | changes)])


def waiting(**changes):
    missing = pb.Peer(rank=0, nonce=ID, host="host", presence=Presence.PRESENT)
    return pb.Waiting(**{"waited_s": 1.0, "count": 1, "missing": [missing]} | changes)


def welcome(**changes):
    fields = {"incarnation": ID, "credit_bytes": 1, "data_port": 50052, "data_key": KEY}
    return pb.Welcome(**fields | changes)


def to_reducer(message):
    return wire.worker_frame_from_wire(message.SerializeToString())


def to_worker(**body):
    return wire.reducer_frame_from_wire(pb.ReducerFrame(**body).SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        join(rank=0, world_size=1),
        join(rank=4095, world_size=4096),
        join(job="j" * 200, host="h" * 255),
        join(job="ü" * 100, host=""),
        join(instance=b""),
        join(credit_bytes=limits.CHUNK_BYTES_MIN),
        join(credit_bytes=limits.CREDIT_BYTES_MAX),
        join(local_size=limits.WORLD_SIZE_MAX),
        join(group="ü" * 50),
        join(run="ü" * 100),
        join(named=pb.NamedReducers(text="ü" * 300, count=limits.ADDRESSES_MAX)),
        configuration(epoch=(1 << 63) - 1, chunk_bytes=limits.CHUNK_BYTES_MAX),
        configuration(chunk_bytes=limits.CHUNK_BYTES_MIN, members=members(limits.MEMBERS_MAX)),
        configuration(members=[member(address="a" * 255, weight=limits.WEIGHT_MAX)]),
        configuration(added=["a" * 255] * limits.ADDED_MAX),
        push(numel=0),
        push(numel=limits.NUMEL_MAX, payload=bytes(limits.CHUNK_BYTES_MAX)),
    ],
    ids=lambda message: message.WhichOneof("body"),
)
def test_values_at_the_edge_pass(message):
    frame = to_reducer(message)
    assert wire.worker_frame_to_wire(frame) == message.SerializeToString()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (join(world_size=0), "Join.world_size is 0, allowed are 1 to 4096"),
        (join(world_size=4097), "Join.world_size is 4097, allowed are 1 to 4096"),
        (join(local_size=4097), "Join.local_size is 4097, allowed are 0 to 4096"),
        (join(rank=2), "Join.rank is 2, it must be below the world size 2"),
        (join(job=""), "length of Join.job is 0, allowed are 1 to 200"),
        (join(job="ü" * 101), "length of Join.job is 202, allowed are 1 to 200"),
        (join(host="h" * 256), "length of Join.host is 256, allowed are 0 to 255"),
        (join(run="r" * 201), "length of Join.run is 201, allowed are 0 to 200"),
        (join(run="a\nb"), "Join.run is 'a\\nb', which has characters that cannot be printed"),
        (join(job="a\nb"), "Join.job is 'a\\nb', which has characters that cannot be printed"),
        (join(host="\x1b[2J"), "Join.host is '\\x1b[2J', which has characters that cannot be printed"),
        (join(group="0" * 101), "length of Join.group is 101, allowed are 0 to 100"),
        (join(group="0\t1"), "Join.group is '0\\t1', which has characters that cannot be printed"),
        (
            join(named=pb.NamedReducers(text="a" * 601, count=1)),
            "length of Join.named.text is 601, allowed are 1 to 600",
        ),
        (
            join(named=pb.NamedReducers(count=1)),
            "length of Join.named.text is 0, allowed are 1 to 600",
        ),
        (
            join(named=pb.NamedReducers(text="a\r", count=1)),
            "Join.named.text is 'a\\r', which has characters that cannot be printed",
        ),
        (
            join(named=pb.NamedReducers(text="a")),
            "Join.named.count is 0, allowed are 1 to 4096",
        ),
        (join(nonce=ID[:15]), "Join.nonce has 15 bytes, it must have 16"),
        (join(instance=ID + b"x"), "Join.instance has 17 bytes, it must have 16"),
        (join(rank=0, instance=b""), "Join.instance has 0 bytes, it must have 16"),
        (join(credit_bytes=1023), "Join.credit_bytes is 1023, allowed are 1024 to 1073741824"),
        (join(credit_bytes=1 << 31), "Join.credit_bytes is 2147483648, allowed are 1024 to 1073741824"),
        (configuration(instance=b""), "Configuration.instance has 0 bytes, it must have 16"),
        (configuration(epoch=0), f"Configuration.epoch is 0, allowed are 1 to {(1 << 63) - 1}"),
        (configuration(epoch=1 << 63), f"Configuration.epoch is {1 << 63}, allowed are 1 to {(1 << 63) - 1}"),
        (configuration(chunk_bytes=512), "Configuration.chunk_bytes is 512, allowed are 1024 to 4194304"),
        (configuration(chunk_bytes=5 << 20), "Configuration.chunk_bytes is 5242880, allowed are"),
        (configuration(chunk_bytes=1025), "Configuration.chunk_bytes is 1025, it must be a multiple of 1024"),
        (configuration(members=[]), "number of Configuration.members is 0, allowed are 1 to 1024"),
        (configuration(members=members(1025)), "number of Configuration.members is 1025, allowed are"),
        (configuration(members=[member(), member()]), "Configuration.members names a reducer twice"),
        (configuration(added=["a:1"] * 129), "number of Configuration.added is 129, allowed are 0 to 128"),
        (configuration(added=[""]), "length of Configuration.added is 0, allowed are 1 to 255"),
        (configuration(added=["a\x07"]), "Configuration.added is 'a\\x07', which has characters that"),
        (configuration(members=[member(address="")]), "length of Member.address is 0, allowed are 1 to 255"),
        (configuration(members=[member(address="a" * 256)]), "length of Member.address is 256, allowed"),
        (configuration(members=[member(incarnation=b"")]), "Member.incarnation has 0 bytes"),
        (configuration(members=[member(weight=0)]), "Member.weight is 0, allowed are 1 to 65535"),
        (configuration(members=[member(weight=65536)]), "Member.weight is 65536, allowed are 1 to 65535"),
        (push(numel=limits.NUMEL_MAX + 1), "Push.collective.numel is 549755813889, allowed are"),
        (push(payload=bytes(limits.CHUNK_BYTES_MAX + 1)), "length of Push.payload is 4194305, allowed are"),
        (push(op=0), "Collective.op is 0; this version knows 1 SUM, 2 AVG"),
        (push(op=6), "Collective.op is 6; this version knows 1 SUM, 2 AVG"),
        (push(dtype=0), "Collective.dtype is 0; this version knows 1 FLOAT32, "),
        (push(dtype=13), "Collective.dtype is 13; this version knows 1 FLOAT32, "),
        (pb.WorkerFrame(push=pb.Push(seq=1)), "Collective.op is 0"),
    ],
)
def test_values_beyond_the_edge_are_refused_by_name(message, text):
    with pytest.raises(MalformedFrame) as caught:
        to_reducer(message)
    assert str(caught.value).startswith(text)


def test_a_join_that_says_nothing_of_a_local_size_stands_for_one_process():
    assert to_reducer(join(local_size=0)).local_size == 1


@pytest.mark.parametrize("dtype", [DType.INT32, DType.INT64])
def test_avg_of_integers_is_refused(dtype):
    # The schema: "AVG ... not for integers".
    with pytest.raises(MalformedFrame):
        to_reducer(push(op=ReduceOp.AVG, dtype=dtype))


def test_a_join_of_another_version_is_not_judged_by_this_versions_limits():
    other = PROTOCOL_VERSION + 1
    frame = to_reducer(join(protocol=other, world_size=0, rank=9, nonce=b"", job=""))
    assert frame == Join("", ID, 9, 0, b"", "host", 0, limits.CREDIT_BYTES_ASKED, protocol=other)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"welcome": pb.Welcome(incarnation=b"", credit_bytes=1)}, "Welcome.incarnation has 0 bytes"),
        ({"welcome": welcome(place=pb.Place(host=b"x"))}, "Welcome.place.host has 1 bytes"),
        (
            {"welcome": welcome(place=pb.Place(link_mbit=limits.LINK_MBIT_MAX + 1))},
            "Welcome.place.link_mbit is 100000001, allowed are 0 to 100000000",
        ),
        ({"welcome": pb.Welcome(incarnation=ID)}, "Welcome.credit_bytes is 0, allowed are 1 to 1073741824"),
        ({"welcome": pb.Welcome(incarnation=ID, credit_bytes=1 << 31)}, "Welcome.credit_bytes is 2147483648"),
        ({"welcome": welcome(data_port=65536)}, "Welcome.data_port is 65536, allowed are 0 to 65535"),
        ({"welcome": welcome(siblings=[50053, 0])}, "Welcome.siblings is 0, allowed are 1 to 65535"),
        ({"welcome": welcome(siblings=[65536])}, "Welcome.siblings is 65536, allowed are 1 to 65535"),
        ({"welcome": welcome(siblings=[1] * 256)}, "number of Welcome.siblings is 256, allowed are 0 to 255"),
        ({"welcome": welcome(data_key=b"")}, "length of Welcome.data_key is 0, allowed are 32 to 32"),
        ({"welcome": welcome(data_key=KEY[1:])}, "length of Welcome.data_key is 31, allowed are 32 to 32"),
        ({"welcome": welcome(data_key=KEY + b"x")}, "length of Welcome.data_key is 33, allowed are 32 to 32"),
        ({"configure": pb.Configuration(instance=ID)}, "Configuration.epoch is 0"),
        ({"result": pb.Result(payload=bytes((4 << 20) + 1))}, "length of Result.payload is 4194305"),
        ({"peers": peer(rank=4096)}, "Peer.rank is 4096, allowed are 0 to 4095"),
        ({"peers": peer(nonce=b"1")}, "Peer.nonce has 1 bytes, it must have 16"),
        ({"peers": peer(host="h" * 256)}, "length of Peer.host is 256, allowed are 0 to 255"),
        ({"peers": peer(presence=0)}, "Peer.presence is 0; this version knows 1 PRESENT, 2 LOST, 3 LEFT"),
        ({"waiting": waiting(count=4097)}, "Waiting.count is 4097, allowed are 1 to 4096"),
        ({"waiting": waiting(count=0)}, "Waiting.count is 0, allowed are 1 to 4096"),
        ({"waiting": waiting(missing=[pb.Peer()] * 9)}, "number of Waiting.missing is 9, allowed are 0 to 8"),
        ({"waiting": waiting(missing=[pb.Peer()])}, "Peer.nonce has 0 bytes"),
        ({"waiting": waiting(waited_s=-1.0)}, "Waiting.waited_s is -1.0, allowed are seconds from 0"),
        ({"waiting": waiting(waited_s=math.nan)}, "Waiting.waited_s is nan"),
        ({"waiting": waiting(waited_s=math.inf)}, "Waiting.waited_s is inf"),
        ({"peers": pb.Peers(peers=[pb.Peer()] * 4097)}, "Peers.peers is 4097, allowed are 0 to 4096"),
    ],
)
def test_a_worker_checks_what_a_reducer_sends(body, text):
    with pytest.raises(MalformedFrame) as caught:
        to_worker(**body)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("port", [1, 65535])
def test_an_offer_of_a_data_port_at_the_edge_passes(port):
    assert to_worker(welcome=welcome(data_port=port)) == Welcome(ID, 1, port, KEY)


def test_without_a_data_port_there_need_be_no_key():
    assert to_worker(welcome=pb.Welcome(incarnation=ID, credit_bytes=1)) == Welcome(ID, 1, 0, b"")


def test_moved_has_a_number_of_its_own_in_each_direction():
    assert to_worker(moved=pb.Moved()) == Moved()
    with pytest.raises(MalformedFrame, match="no body that this version knows"):
        wire.worker_frame_from_wire(wire.reducer_frame_to_wire(Moved()))


def test_a_status_with_a_bad_peer_is_malformed():
    status = pb.StatusResponse(jobs=[pb.JobStatus(peers=[pb.Peer(rank=1)])])
    with pytest.raises(MalformedFrame, match=r"Peer\.nonce"):
        wire.status_from_wire(status.SerializeToString())


def test_long_abort_messages_are_cut_on_both_sides():
    long = "x" * (limits.MESSAGE_CHARS_MAX + 1)
    short = Abort(7, "x" * limits.MESSAGE_CHARS_MAX)
    sent = wire.worker_frame_to_wire(Abort(7, long))
    assert pb.WorkerFrame.FromString(sent).abort.message == short.message
    assert to_worker(abort=pb.Abort(code=7, message=long)) == short


def test_an_unknown_abort_code_is_kept():
    assert to_worker(abort=pb.Abort(code=99, message="new")) == Abort(99, "new")


def test_the_largest_frames_of_each_kind_fit_the_transports_limit():
    crowd = [
        pb.Peer(rank=rank, nonce=ID, host="h" * limits.HOST_BYTES_MAX, presence=3, streams=2**32 - 1)
        for rank in range(limits.WORLD_SIZE_MAX)
    ]
    everybody = pb.ReducerFrame(peers=pb.Peers(peers=crowd, draining=True)).SerializeToString()
    widest = [
        member(address="a" * limits.HOST_BYTES_MAX, incarnation=index.to_bytes(16, "big"), weight=65535)
        for index in range(limits.MEMBERS_MAX)
    ]
    added = ["a" * limits.HOST_BYTES_MAX] * limits.ADDED_MAX
    hello = configuration(members=widest, added=added).SerializeToString()
    chunk = push(payload=bytes(limits.CHUNK_BYTES_MAX), numel=limits.NUMEL_MAX).SerializeToString()
    assert max(map(len, (everybody, hello, chunk))) <= limits.FRAME_BYTES_MAX
    assert len(everybody) <= limits.REDUCER_CONTROL_BYTES_MAX <= limits.REDUCER_CONTROL_BYTES_MAX
    assert len(hello) <= limits.WORKER_CONTROL_BYTES_MAX <= limits.REDUCER_CONTROL_BYTES_MAX
    peers = wire.reducer_frame_from_wire(everybody)
    assert peers.peers[-1] == Peer(4095, ID, "h" * 255, Presence.LEFT, 2**32 - 1)


# ---- what decoding costs: every field of two bytes would become an object of 62 ----


@pytest.mark.parametrize("field", [1, 2, 4, 5, 6])
def test_a_worker_frame_that_is_no_push_is_small(field):
    limit = limits.WORKER_CONTROL_BYTES_MAX
    text = f"length of a worker frame that is not a Push is {limit + 1}, allowed are 0 to {limit}"
    with pytest.raises(MalformedFrame, match=text):
        wire.worker_frame_from_wire(sized(field, limit + 1))
    with pytest.raises(MalformedFrame) as caught:
        wire.worker_frame_from_wire(sized(99, limit))
    assert "no body that this version knows" in str(caught.value)


@pytest.mark.parametrize("field", [1, 2, 3, 5, 6, 7, 8])
def test_a_reducer_frame_that_is_no_result_is_small(field):
    limit = limits.REDUCER_CONTROL_BYTES_MAX
    text = f"length of a reducer frame that is not a Result is {limit + 1}, allowed are 0 to {limit}"
    with pytest.raises(MalformedFrame, match=text):
        wire.reducer_frame_from_wire(sized(field, limit + 1))
    with pytest.raises(MalformedFrame) as caught:
        wire.reducer_frame_from_wire(sized(99, limit))
    assert "no body that this version knows" in str(caught.value)


def test_a_push_of_very_many_fields_is_left_to_the_generated_parser():
    # Walking them one by one kept the reducer's only thread busy for seconds.
    small = push(payload=b"1234").push.SerializeToString()
    few = small + b"\x30\x00" * (limits.FRAME_FIELDS_MAX - 2)
    more = few + b"\x30\x00"
    assert payloads.split(framed(few), 3) is not None
    assert payloads.split(framed(more), 3) is None
    assert wire.worker_frame_from_wire(framed(more)) == wire.worker_frame_from_wire(framed(few))
    with pytest.raises(MalformedFrame, match="length of a worker frame that is not a Push is"):
        wire.worker_frame_from_wire(framed(small + b"\x30\x00" * limits.WORKER_CONTROL_BYTES_MAX))


def test_a_status_of_more_jobs_than_any_reducer_has_is_malformed():
    text = f"number of StatusResponse.jobs is {limits.STATUS_JOBS_MAX + 1}, allowed are 0 to"
    assert len(wire.status_from_wire(b"\x3a\x00" * limits.STATUS_JOBS_MAX).jobs) == limits.STATUS_JOBS_MAX
    with pytest.raises(MalformedFrame, match=text):
        wire.status_from_wire(b"\x3a\x00" * (limits.STATUS_JOBS_MAX + 1))


@pytest.mark.parametrize("timeout_s", [0.0, 30.0, limits.DRAIN_S_MAX])
def test_how_long_a_reducer_drains(timeout_s):
    assert wire.drain_from_wire(wire.drain_to_wire(timeout_s)) == timeout_s


@pytest.mark.parametrize("timeout_s", [-1.0, limits.DRAIN_S_MAX + 1, float("inf"), float("nan")])
def test_no_reducer_drains_for_so_long(timeout_s):
    with pytest.raises(MalformedFrame, match=r"DrainResponse.timeout_seconds is .*, allowed are 0 to 604800"):
        wire.drain_from_wire(wire.drain_to_wire(timeout_s))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": 99}, "Event.kind is 99; this version knows"),
        ({"kind": 0}, "Event.kind is 0; this version knows"),
        ({"text": "t" * (limits.EVENT_CHARS_MAX + 1)}, "length of Event.text is 201, allowed are 0 to 200"),
        ({"job": "j" * (limits.EVENT_JOB_BYTES_MAX + 1)}, "length of Event.job is 317, allowed are 0 to 316"),
    ],
)
def test_an_event_is_one_short_line(fields, text):
    event = pb.Event(**{"number": 1, "kind": 1, "job": "job", "text": "text"} | fields)
    with pytest.raises(MalformedFrame, match=text):
        wire.status_from_wire(pb.StatusResponse(events=[event]).SerializeToString())


def test_a_lying_reducer_says_nothing_that_moves_the_cursor():
    bad, good = "x\x1b]0;t\x07\n\u202ey", r"x\x1b]0;t\x07\n\u202ey"
    peer = pb.Peer(rank=0, nonce=bytes(16), host=bad, presence=1)
    job = pb.JobStatus(job=bad, group=bad, peers=[peer])
    event = pb.Event(number=1, kind=1, job=bad, text=bad)
    status = wire.status_from_wire(
        pb.StatusResponse(version=bad, jobs=[job], events=[event]).SerializeToString()
    )
    shown = status.jobs[0]
    texts = status.version, shown.job, shown.group, shown.peers[0].host
    assert (*texts, status.events[0].job, status.events[0].text) == (good,) * 6
    peers = wire.reducer_frame_from_wire(pb.ReducerFrame(peers=pb.Peers(peers=[peer])).SerializeToString())
    assert peers.peers[0].host == good
    assert str(from_code(3, bad)) == str(from_name("ResourceExhausted", bad)) == good


def test_an_address_of_a_configuration_is_printable():
    member = pb.Member(address="a\x1b:1", incarnation=bytes(16), weight=1)
    configuration = pb.Configuration(instance=bytes(16), epoch=1, chunk_bytes=1024, members=[member])
    with pytest.raises(MalformedFrame, match=r"Member.address is 'a\\x1b:1', which has characters"):
        wire.reducer_frame_from_wire(pb.ReducerFrame(configure=configuration).SerializeToString())


def test_a_status_has_a_limited_number_of_events():
    event = pb.Event(kind=1)
    answer = pb.StatusResponse(events=[event] * limits.EVENTS_MAX)
    assert len(wire.status_from_wire(answer.SerializeToString()).events) == limits.EVENTS_MAX
    answer.events.add(kind=1)
    with pytest.raises(MalformedFrame, match=r"number of StatusResponse\.events is 65, allowed are 0 to 64"):
        wire.status_from_wire(answer.SerializeToString())


def framed(inside):
    """Return a WorkerFrame of a Push with these bytes inside."""
    return b"\x1a" + varint(len(inside)) + inside


def sized(field, size):
    """Return a frame of exactly `size` bytes that is one field of zeros."""
    tag = varint(field << 3 | 2)
    head = next(head for n in range(1, 6) if len(head := tag + varint(size - len(tag) - n)) == len(tag) + n)
    return head + bytes(size - len(head))


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])

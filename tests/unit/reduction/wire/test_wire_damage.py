"""Other encodings of a frame, which must mean the same, and bytes that are no frame: only MalformedFrame."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction import wire
from reduction.errors import MalformedFrame
from reduction.model import Ack, Collective, DType, Push, ReduceOp, Result
from reduction.v1 import reduction_pb2 as pb
from unit.reduction.wire.messages import CODINGS, MESSAGES, decoded, varint

PUSH = Push(5, 300, 2, Collective(ReduceOp.SUM, DType.FLOAT32, 3, 9), 7, memoryview(b"0123456789ab"))


def field(number, value):
    """Encode one field: an int as varint, bytes as length-delimited."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


# ---- other encodings of the same frame ----

ODD_PIECES = {
    "epoch": field(1, 5),
    "seq": field(2, 300),
    "chunk": field(3, 2),
    "collective": field(4, pb.Collective(op=1, dtype=1, numel=3, fingerprint=9).SerializeToString()),
    "held": field(5, 7),
    "payload": field(15, b"0123456789ab"),
    "unknown varint": field(200, 1 << 63),
    "unknown bytes": field(16, b"x" * 200),
    "unknown fixed64": varint(17 << 3 | 1) + bytes(8),
    "unknown fixed32": varint(18 << 3 | 5) + bytes(4),
    "unknown group": varint(19 << 3 | 3) + field(1, 1) + varint(19 << 3 | 4),
    "payload's number with another type": varint(15 << 3 | 0) + varint(3),
}
KNOWN, UNKNOWN = list(ODD_PIECES)[:6], list(ODD_PIECES)[6:]


@given(st.lists(st.sampled_from(UNKNOWN)).flatmap(lambda names: st.permutations([*KNOWN, *names])))
def test_fields_in_any_order_with_unknown_ones_between(names):
    data = field(3, b"".join(ODD_PIECES[name] for name in names))
    push = wire.worker_frame_from_wire(data)
    assert push == PUSH
    assert push.payload.obj is data or "unknown group" in names, "there is no need to copy"


def test_the_last_of_several_payloads_counts():
    whole = field(3, b"".join(ODD_PIECES.values()) + field(15, b"first") + ODD_PIECES["payload"])
    assert wire.worker_frame_from_wire(whole) == PUSH
    assert pb.WorkerFrame.FromString(whole).push.payload == PUSH.payload


def test_a_message_in_two_pieces_is_merged():
    halves = [ODD_PIECES["epoch"] + ODD_PIECES["payload"] + ODD_PIECES["collective"]]
    halves.append(ODD_PIECES["seq"] + ODD_PIECES["chunk"] + ODD_PIECES["held"])
    assert wire.worker_frame_from_wire(b"".join(field(3, half) for half in halves)) == PUSH


def test_an_unknown_field_around_the_body_is_skipped():
    data = wire.worker_frame_to_wire(PUSH)
    assert wire.worker_frame_from_wire(field(99, b"new") + data) == PUSH
    assert wire.worker_frame_from_wire(data + field(99, 1)) == PUSH
    result = Result(1, 2, 3, 4, memoryview(b"abc"))
    assert wire.reducer_frame_from_wire(wire.reducer_frame_to_wire(result) + field(99, 1)) == result


def test_the_last_of_several_bodies_counts():
    data = wire.worker_frame_to_wire(PUSH) + wire.worker_frame_to_wire(Ack(4))
    assert wire.worker_frame_from_wire(data) == Ack(4)


# ---- bytes that are no frames ----


@given(st.binary(max_size=64))
def test_random_bytes_raise_nothing_but_malformed_frame(data):
    for cls in CODINGS:
        decoded(cls, data)


@given(st.binary(max_size=40), st.binary(max_size=8))
@pytest.mark.parametrize(("cls", "tag"), [(pb.WorkerFrame, b"\x1a"), (pb.ReducerFrame, b"\x22")])
def test_random_bytes_in_a_push_or_result_decode_as_in_the_generated_classes(cls, tag, inside, after):
    data = tag + varint(len(inside)) + inside + after
    frame = decoded(cls, data)
    if isinstance(frame, Push | Result):
        body = getattr(cls.FromString(data), type(frame).__name__.lower())
        assert body.payload == frame.payload


@pytest.mark.parametrize(("cls", "values"), MESSAGES)
@given(data=st.data())
@settings(max_examples=25)
def test_changed_bytes_raise_nothing_but_malformed_frame(cls, values, data):
    damaged = bytearray(CODINGS[cls][0](data.draw(values)) + bytes(1))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decoded(cls, bytes(damaged))


@pytest.mark.parametrize("data", [b"", field(99, b"a body of a later version")])
def test_a_frame_without_a_known_body_is_malformed(data):
    with pytest.raises(MalformedFrame, match=f"a worker frame of {len(data)} bytes has no body"):
        wire.worker_frame_from_wire(data)
    with pytest.raises(MalformedFrame, match=f"a reducer frame of {len(data)} bytes has no body"):
        wire.reducer_frame_from_wire(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x1a",  # the tag of a push, no length
        b"\x1a" + b"\xff" * 11,  # a length that never ends
        b"\x1a\x05" + b"\x7a\xff\xff\xff\xff",  # a payload length that exceeds the buffer
        b"\x1a\x03" + b"\x7a\x05a",  # a payload longer than its message
        b"\x1a\x02" + b"\x09\x00",  # a fixed64 of one byte
        b"\x1a\x02" + b"\x0d\x00",  # a fixed32 of one byte
        b"\x1a\x01" + b"\x0f",  # wire type 7 does not exist
        b"\x1a\x01" + b"\x1c",  # the end of a group that never began
        b"\x1a\x02" + b"\x00\x01",  # field number 0 does not exist
        field(3, field(4, b"\xff")),  # an invalid collective
        field(1, field(2, b"\xff")),  # a job name that is not UTF-8
    ],
)
def test_frames_the_generated_classes_refuse_are_malformed(data):
    with pytest.raises(DecodeError):
        pb.WorkerFrame.FromString(data)
    with pytest.raises(MalformedFrame, match="bytes are not a"):
        wire.worker_frame_from_wire(data)

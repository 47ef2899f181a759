"""Every message against the generated classes, both ways: the hand-written encoding produces exactly their bytes."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction import limits, wire
from reduction.model import NOWHERE, Collective, Configure, DType, Push, ReduceOp, Result, Welcome
from reduction.v1 import reduction_pb2 as pb
from unit.reduction.wire.messages import CODINGS, MESSAGES, decoded, name_of


def fill(message, value):
    """Copy a model value to the generated message, whose fields have the same or nearly the same names."""
    for field in message.DESCRIPTOR.fields:
        ours = getattr(value, name_of(type(value), field))
        theirs = getattr(message, field.name)
        if field.is_repeated and field.message_type is None:
            theirs.extend(ours)
        elif field.is_repeated:
            for item in ours:
                fill(theirs.add(), item)
        elif ours is None or ours == NOWHERE:
            assert field.has_presence
        elif field.message_type is not None:
            theirs.SetInParent()
            fill(theirs, ours)
        else:
            setattr(message, field.name, bytes(ours) if isinstance(ours, memoryview) else ours)


def generated(cls, value):
    """Return a model value as a generated message."""
    message = body = cls()
    if cls in (pb.WorkerFrame, pb.ReducerFrame):
        body = getattr(message, re.sub(r"\B([A-Z])", r"_\1", type(value).__name__).lower())
        body.SetInParent()
    fill(body, value.configuration if isinstance(value, Configure) else value)
    return message


@pytest.mark.parametrize(("cls", "values"), MESSAGES)
@given(data=st.data())
@settings(max_examples=25)
def test_the_bytes_are_those_of_the_generated_classes(cls, values, data):
    value = data.draw(values)
    to_wire, from_wire = CODINGS[cls]
    expected = generated(cls, value).SerializeToString()
    assert to_wire(value) == expected
    assert from_wire(expected) == value
    if cls in (pb.WorkerFrame, pb.ReducerFrame):
        shorter = [decoded(cls, expected[:cut]) for cut in range(len(expected))]
        assert value not in shorter
        assert not isinstance(value, Push | Result) or not any(shorter), "its end would be lost"


def test_a_welcome_does_not_show_its_key():
    # Anyone who has the key can take over the stream, and frames get into logs.
    key = bytes(range(limits.DATA_KEY_BYTES))
    assert "data_key" not in repr(Welcome(bytes(16), 1, 50052, key))


@pytest.mark.parametrize("nbytes", [0, 1, 127, 128, 16383, 16384, limits.CHUNK_BYTES_MAX])
def test_payloads_with_length_prefixes_of_every_size(nbytes):
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

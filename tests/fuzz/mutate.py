"""Mutation that keeps structure: it changes fields of frames and records of scripts; changed bytes mostly break them.

In a fraction of the cases the fuzzing engine mutates the bytes itself, so every input remains reachable.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from fuzz import frames
from fuzz.scripts import RECORDS_MAX, Record, decode, encode
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from reduction.v1 import reduction_pb2 as pb

#: (data, longest) -> data: the engine's own mutation.
ByBytes = Callable[[bytes, int], bytes]

_REALS = (0.0, 0.5, 1e300, math.inf, math.nan)
_NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    255,
    1023,
    1024,
    1025,
    4096,
    (1 << 31) - 1,
    (1 << 32) - 1,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_IDS = (frames.INCARNATION, frames.OTHER, frames.LIFE, frames.NEXT_LIFE, *frames.NONCES, frames.KEY)
_TEXTS = ("left", "right", "a:1", "b:1", "c:1", "h0", "", "no port", "h" * 255, "ü" * 100)
_SIZES = (0, 1, 4, 16, 352, 1024)
_POOL = {"worker": frames.WORKER_BYTES, "reducer": frames.REDUCER_BYTES}
_CLASSES: dict[str, type[Message]] = {"worker": pb.WorkerFrame, "reducer": pb.ReducerFrame}


def mutate(data: bytes, longest: int, shape: str, rng: random.Random, by_bytes: ByBytes) -> bytes:
    """Return another input like this one, of at most `longest` bytes.

    Args:
        data: the input.
        longest: limit in bytes.
        shape: see `targets.Target.shape`.
        rng: all choices come from it.
        by_bytes: mutates bytes without regard to their meaning.
    """
    side, _, is_script = shape.partition(" ")
    if side not in _CLASSES or rng.random() < 0.3:
        return by_bytes(data, longest)
    if not is_script:
        return _frame(data, longest, side, rng, by_bytes)[:longest]
    head, script = (data[:1], data[1:]) if side == "reducer" else (b"", data)
    records = decode(script)
    for _ in range(rng.randint(1, 3)):
        _change(records, side, rng, by_bytes)
    return (head + encode(records))[:longest]


def _change(records: list[Record], side: str, rng: random.Random, by_bytes: ByBytes) -> None:
    """Change, add, repeat, move or drop one record."""
    place = rng.randrange(len(records)) if records else 0
    match rng.randrange(6) if records else 0:
        case 0 if len(records) < RECORDS_MAX:
            records.insert(rng.randint(0, len(records)), Record(0, rng.randrange(4), rng.choice(_POOL[side])))
        case 1 if len(records) < RECORDS_MAX:
            records.insert(rng.randint(0, len(records)), records[place])
        case 2:
            del records[place]
        case 3:
            records.insert(rng.randrange(len(records)), records.pop(place))
        case 4:
            records[place] = records[place]._replace(operation=rng.randrange(8), argument=rng.randrange(256))
        case _:
            data = _frame(records[place].data, 4096, side, rng, by_bytes)
            records[place] = records[place]._replace(data=data)


def _frame(data: bytes, longest: int, side: str, rng: random.Random, by_bytes: ByBytes) -> bytes:
    message = _CLASSES[side]()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return by_bytes(data, longest)
    if rng.random() < 0.1:
        return rng.choice(_POOL[side])
    _touch(message, rng)
    return message.SerializeToString()


def _touch(message: Message, rng: random.Random) -> None:
    """Change one field of a message, or of one inside it."""
    inside: list[Message] = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            inside += list(value) if field.is_repeated else [value]
    if inside and rng.random() < 0.8:
        _touch(rng.choice(inside), rng)
        return
    if not message.DESCRIPTOR.fields:
        return
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        _touch_repeated(getattr(message, field.name), field, rng)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), rng))


def _touch_repeated(values: Any, field: FieldDescriptor, rng: random.Random) -> None:
    if values and rng.random() < 0.4:
        del values[rng.randrange(len(values))]
    elif field.message_type is None:
        values.append(_value(field, 0, rng))
    elif values and rng.random() < 0.7:
        values.add().CopyFrom(rng.choice(list(values)))
    else:
        values.add()


def _value(field: FieldDescriptor, present: Any, rng: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice((*_IDS, bytes(rng.choice(_SIZES)), present[1:], present + b"x"))
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice(_TEXTS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return not present
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.randrange(16)
        case FieldDescriptor.CPPTYPE_UINT32:
            return rng.choice((*_NUMBERS, present + 1, present - 1)) & 0xFFFFFFFF
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice((*_REALS, present + 1, -present))
        case _:
            return rng.choice((*_NUMBERS, present + 1, present - 1)) & 0xFFFFFFFFFFFFFFFF

"""Values written as JSON come back unchanged, and anything that is no such value is rejected."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from reduction.values import from_json, to_json


@dataclass(frozen=True)
class Part:
    name: str
    digest: bytes = b""


@dataclass(frozen=True)
class Whole:
    rate: float
    parts: tuple[Part, ...]
    counts: list[int] = field(default_factory=list)
    by_rank: dict[int, Part] = field(default_factory=dict)
    at: float | None = None


def test_values_survive_a_round_trip():
    whole = Whole(2.5, (Part("a", b"\x00\xff"), Part("b")), [1, 2], {3: Part("c")}, 4.5)
    assert from_json(Whole, json.loads(json.dumps(to_json(whole)))) == whole


def test_integers_become_floats_and_missing_fields_get_their_defaults():
    found = from_json(Whole, {"rate": 1, "parts": [], "at": None})
    assert found == Whole(1.0, ())
    assert type(found.rate) is float


@pytest.mark.parametrize(
    "document",
    [
        7,
        {},
        {"rate": True, "parts": []},
        {"rate": "fast", "parts": []},
        {"rate": 10**400, "parts": []},
        {"rate": 1.0, "parts": 3},
        {"rate": 1.0, "parts": [{"name": "a", "digest": "no digits"}]},
        {"rate": 1.0, "parts": [], "by_rank": {"first": {"name": "a"}}},
        {"rate": 1.0, "parts": [], "more": 1},
    ],
)
def test_anything_else_is_refused(document):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        from_json(Whole, document)

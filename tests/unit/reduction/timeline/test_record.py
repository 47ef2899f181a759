"""A record becomes a file and is read back; nothing else is mistaken for one."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.errors import ConfigError
from reduction.timeline.record import Span, from_json
from unit.reduction.timeline.records import record, span

SOME = record(
    1,
    [span(0, 1.0, lanes=("a:1", "b:2")), Span(1, "x", 8, 8, 3.0)],
    error="WorkerLost",
    notes=[(1.5, "epoch 2")],
)


def test_a_record_survives_a_round_trip():
    assert from_json(SOME.to_json(), "f") == SOME


def test_first_and_last_push_cover_all_reducers():
    both = span(0, 1.0, lanes=("a:1", "b:2"))
    assert (both.first_push, both.last_push) == (1.2, 1.7)
    assert (Span(1, "x", 8, 8, 3.0).first_push, Span(1, "x", 8, 8, 3.0).last_push) == (None, None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "^f has format 2, but this version reads format 1"),
        ({"rank": "one"}, "rank is 'one'"),
        ({"unix_offset": None}, "unix_offset is None"),
        ({"more": 1}, "unexpected keyword argument 'more'"),
        ({"spans": [{"lanes": {}}]}, "missing"),
        ({"spans": [asdict(SOME.spans[1]) | {"done": "soon"}]}, "done is 'soon'"),
        (
            {"spans": [asdict(SOME.spans[1]) | {"lanes": {"a": {"first_push": 1, "last_push": []}}}]},
            "last_push is",
        ),
        ({"notes": [{"at": 1, "text": 2}]}, "text is 2"),
        ({"notes": 3}, "not iterable"),
    ],
)
def test_an_invalid_record_is_an_error(change, why):
    document = json.loads(SOME.to_json()) | change
    with pytest.raises(ConfigError, match=why):
        from_json(json.dumps(document), "f")


@given(st.text() | st.sampled_from(["", "[]", "{}", "3", "[" * 100_000]))
def test_any_other_text_is_an_error(text):
    with pytest.raises(ConfigError, match="f is not a record of a rank"):
        from_json(text, "f")

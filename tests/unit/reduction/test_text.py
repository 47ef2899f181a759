"""Text from peers is put on one line, and moves no cursor."""

import pytest
from reduction.text import load_json, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("job 7 \u65e5\u672c", "job 7 \u65e5\u672c"),
        ("a\nb\r", r"a\nb\r"),
        ("\x1b]0;title\x07\x9b2J", r"\x1b]0;title\x07\x9b2J"),
        ("a\u202egnp.exe\u2066\u200b", r"a\u202egnp.exe\u2066\u200b"),
        ("\u2028\udc80\U000e0001", r"\u2028\udc80\U000e0001"),
    ],
)
def test_unprintable_characters_are_escaped(text, shown):
    assert printable(text) == shown
    assert shown.isprintable()
    assert printable(shown) == shown


def test_all_text_in_json_from_a_peer_is_made_printable():
    data = '{"a\\u001b": ["\\n", {"b": "\\u202e"}, 1, 2.5, null, true]}'
    assert load_json(data) == {r"a\x1b": [r"\n", {"b": r"\u202e"}, 1, 2.5, None, True]}
    assert load_json(b'"x"') == "x"
    with pytest.raises(ValueError, match="Expecting"):
        load_json("no")

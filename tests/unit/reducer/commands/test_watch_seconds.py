"""`reducer status --watch` may be followed by seconds, and then by addresses."""

import pytest

from reducer.commands.status import watch_seconds


@pytest.mark.parametrize(
    ("given", "addresses", "expected"),
    [
        (None, ("a:1",), (None, ("a:1",))),
        ("2", (), (2.0, ())),
        ("0.5", ("a:1",), (0.5, ("a:1",))),
        ("a:1", ("b:2",), (2.0, ("a:1", "b:2"))),
    ],
)
def test_watch_may_have_seconds(given, addresses, expected):
    assert watch_seconds(given, addresses) == expected

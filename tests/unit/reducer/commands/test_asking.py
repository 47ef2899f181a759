"""The reducers that commands query: from the command line, from a variable, or on this machine."""

import pytest
from reduction.errors import ConfigError

from reducer.commands.asking import named


@pytest.fixture(autouse=True)
def environ(monkeypatch):
    monkeypatch.delenv("REDUCTION_REDUCERS", raising=False)


@pytest.mark.parametrize("words", [("a:1,b:2", "50051"), ("a:1,", "b:2", "50051"), ("a:1, b:2,50051",)])
def test_addresses_may_be_comma_separated_as_in_the_variable(words):
    assert named(words) == (("a:1", "b:2", "127.0.0.1:50051"), "the command line")


def test_without_an_address_the_variable_is_used(monkeypatch):
    assert named(()) == (("127.0.0.1:50051",), "the default")
    monkeypatch.setenv("REDUCTION_REDUCERS", "a:1,b:2")
    assert named(()) == (("a:1", "b:2"), "REDUCTION_REDUCERS")


def test_invalid_addresses_are_named():
    with pytest.raises(ConfigError, match="reducer 'nothing' is not HOST:PORT"):
        named(("a:1,nothing",))

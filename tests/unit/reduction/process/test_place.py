"""The place of a process: its host, and the rate of that host's link."""

import builtins
import socket

import pytest
from reduction.errors import ConfigError
from reduction.limits import ID_BYTES
from reduction.process.place import link_mbit, local_socket, loopback_id, own_host


@pytest.mark.parametrize(
    ("text", "mbit"),
    [
        ("25G", 25_000),
        ("2.5G", 2_500),
        ("100M", 100),
        ("1T", 1_000_000),
        (" 10 Gbit/s", 10_000),
        ("40gbps", 40_000),
    ],
)
def test_a_rate_is_a_number_with_a_unit_of_powers_of_1000(text, mbit):
    assert link_mbit("link", text) == mbit


@pytest.mark.parametrize("text", ["", "25", "fast", "-1G", "0M", "0.1M", "101T", "25GB", "25 G G"])
def test_any_other_rate_is_an_error_that_shows_the_format(text):
    with pytest.raises(ConfigError, match=rf"^--link is {text!r}; it must be the rate .* such as 25G"):
        link_mbit("--link", text)


def test_both_sides_agree_on_their_host_and_its_reducers_local_socket():
    assert own_host() == own_host()
    assert len(own_host()) == ID_BYTES
    assert local_socket(b"\x01\xff") == "\0reduction-server-01ff"


def test_without_proc_the_host_name_identifies_the_host(monkeypatch):
    def refuse(*_):
        raise OSError

    here = own_host()
    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(socket, "gethostname", lambda: "a-host")
    assert loopback_id() == "a-host"
    assert own_host() != here

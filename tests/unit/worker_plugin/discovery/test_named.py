"""How a rank says which reducers it was told of."""

import socket

from reduction.limits import NAMED_BYTES_MAX

from worker_plugin.discovery import named
from worker_plugin.discovery.named import named_reducers


def test_the_order_does_not_count():
    assert named_reducers(["b.invalid:1", "a.invalid:1"]) == named_reducers(["a.invalid:1", "b.invalid:1"])
    assert named_reducers(["10.0.0.2:1", "10.0.0.1:1"]).text == "10.0.0.1:1, 10.0.0.2:1"


def test_other_names_of_the_same_addresses_agree(monkeypatch):
    def getaddrinfo(host, port, **_):
        if host == "red":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(named.socket, "getaddrinfo", getaddrinfo)
    by_name, by_address = named_reducers(["red:1"]), named_reducers(["10.0.0.1:1"])
    assert by_name.text != by_address.text
    assert by_name.agrees_with(by_address)
    assert not named_reducers(["red:2"]).agrees_with(by_address)
    assert not named_reducers(["blue:1"]).agrees_with(by_address)
    assert not named_reducers(["red:1", "10.0.0.2:1"]).agrees_with(by_address)


def test_ipv6_in_any_spelling():
    assert named_reducers(["[FD00:0::1]:1"]).agrees_with(named_reducers(["[fd00::1]:1"]))


def test_names_are_not_looked_up_for_ever(monkeypatch):
    monkeypatch.setattr(named, "LOOK_UP_S", 0.0)
    monkeypatch.setattr(named.socket, "getaddrinfo", None)
    assert named_reducers(["red:1"]).text == "red:1"


def test_a_long_list_is_cut_and_still_told_apart():
    many = [f"10.0.{number // 250}.{number % 250}:50051" for number in range(500)]
    one, other = named_reducers(many), named_reducers([*many[:-1], "10.9.9.9:50051"])
    for each in (one, other):
        assert len(each.text.encode()) <= NAMED_BYTES_MAX
        assert " in all, #" in each.text
    assert one.text.endswith(")")
    assert "(500 in all" in one.text
    assert not one.agrees_with(other)


def test_what_cannot_be_printed_is_left_out():
    assert named_reducers(["a\n:1"]).text.startswith("a:1... (1 in all, #")

"""Reducers on the ranks' hosts: their start, their addresses, and their discovery by all ranks."""

import socket
from typing import ClassVar

import pytest
from reduction.errors import ConfigError, ReducerUnavailable
from torch.distributed import HashStore

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import colocated
from worker_plugin.discovery.bounded_store import BoundedStore
from worker_plugin.discovery.colocated import (
    Colocation,
    addresses_of,
    is_needed,
    leaders_of,
    own_address,
    start,
)

TWO = Colocation((0, 2), "secret")
KEY = "colocated/nonce"
USER = ("job", "")


class Reducer:
    """Stands in for a reducer process."""

    made: ClassVar[list] = []

    def __init__(self, user, host, token, tls):
        self.users = {user}
        self.address = f"{host}:{7000 + len(self.made)}"
        self.token = token
        self.made.append(self)


@pytest.fixture
def reducers(monkeypatch):
    monkeypatch.setattr(Reducer, "made", [])
    monkeypatch.setattr(colocated, "lend", Reducer)
    monkeypatch.setattr(colocated, "give_back", lambda user, made: [one.users.remove(user) for one in made])
    return Reducer.made


@pytest.fixture
def config():
    return PluginConfig(colocated_host="10.0.0.1", timeout_s=5.0)


def test_the_lowest_rank_of_each_host_leads_it():
    assert leaders_of({0: "a", 1: "b", 2: "a", 3: "c", 4: "b"}) == (0, 1, 3)
    assert leaders_of({}) == ()


@pytest.mark.parametrize(
    ("mode", "hosts", "reducers", "needed"),
    [
        ("always", 0, None, False),  # no store, so no one to tell
        (None, 1, None, False),  # rank 0 starts a private one
        (None, 4, None, True),
        (None, 4, ["r1:1"], False),
        ("auto", 1, None, False),
        ("auto", 4, None, True),
        ("auto", 4, ["r1:1", "r1:2", "r2:1", "r3:1"], True),
        ("auto", 4, ["r1:1", "r2:1", "r3:1", "r4:1"], False),
        ("auto", 500, ["r1:1"], False),
        ("always", 1, None, True),
        ("always", 2, ["r1:1", "r2:1"], True),
    ],
)
def test_reducers_are_started_if_they_would_get_a_share(mode, hosts, reducers, needed):
    assert is_needed(PluginConfig(colocated=mode), hosts, reducers) is needed


@pytest.mark.parametrize(
    ("hosts", "reducers", "warning"),
    [
        (
            4,
            ["r1:1", "r2:1"],
            "2 hosts with reducers for 4 hosts with ranks may take 1.3 times as long as a ring",
        ),
        (8, ["r1:1", "r1:2"], "1 hosts with reducers for 8 hosts with ranks may take 4.6 times"),
        (4, ["r1:1", "r2:1", "r3:1"], ""),
        (2, ["r1:1", "r2:1"], ""),
        (1, ["r1:1"], ""),
        (0, ["r1:1"], ""),
    ],
)
def test_too_few_reducers_cause_a_warning(hosts, reducers, warning, caplog):
    colocated.advise(hosts, reducers)
    assert warning in caplog.text
    assert bool(warning) == ("colocated='auto'" in caplog.text)


@pytest.mark.parametrize(("mode", "reducers"), [(None, None), ("auto", None), ("always", ["r1:1"])])
def test_too_many_hosts_need_reducers_elsewhere(mode, reducers):
    with pytest.raises(ConfigError, match="200 hosts are too many for a reducer on each; the limit is 128"):
        is_needed(PluginConfig(colocated=mode), 200, reducers)


def test_leaders_start_one_each_and_all_ranks_learn_of_it(reducers, config):
    store = BoundedStore(HashStore(), PluginConfig())
    assert start(config, TWO, store, KEY, 1, USER) == []
    assert start(config, TWO, store, KEY, 2, USER) == reducers[:1]
    assert start(config, TWO, store, KEY, 0, USER) == reducers[-1:]
    assert {reducer.token for reducer in reducers} == {"secret"}
    found = addresses_of(config, TWO, store, KEY)
    assert found == (reducers[1].address, reducers[0].address)


@pytest.mark.parametrize(("link", "count"), [("", 1), ("25G", 5), ("400G", 8)])
def test_a_fast_link_gets_several_processes_but_not_all_of_the_host(reducers, link, count):
    config = PluginConfig(colocated_host="10.0.0.1", link=link or None, timeout_s=5.0)
    store, alone = BoundedStore(HashStore(), PluginConfig()), Colocation((0,), "secret")
    assert len(start(config, alone, store, KEY, 0, USER)) == count
    assert addresses_of(config, alone, store, KEY) == tuple(one.address for one in reducers)


@pytest.mark.parametrize("error", [ReducerUnavailable("no"), OSError("no more processes")])
def test_a_reducer_that_does_not_start_is_an_error_on_all_ranks(reducers, config, monkeypatch, error):
    store = BoundedStore(HashStore(), PluginConfig())
    start(config, TWO, store, KEY, 0, USER)

    def refuse(*_):
        raise error

    monkeypatch.setattr(colocated, "lend", refuse)
    with pytest.raises(ReducerUnavailable, match=str(error)):
        start(config, TWO, store, KEY, 2, USER)
    with pytest.raises(ReducerUnavailable, match=rf"^rank 2 \({socket.gethostname()}\): .*{error}"):
        addresses_of(config, TWO, store, KEY)


def test_started_reducers_are_given_back_if_another_one_does_not_start(reducers, monkeypatch):
    config = PluginConfig(colocated_host="10.0.0.1", link="15G", timeout_s=5.0)

    def lend(*arguments):
        if len(reducers) == 2:
            raise ReducerUnavailable("no")
        return Reducer(*arguments)

    monkeypatch.setattr(colocated, "lend", lend)
    with pytest.raises(ReducerUnavailable):
        start(config, TWO, HashStore(), KEY, 0, USER)
    assert [reducer.users for reducer in reducers] == [set(), set()]


# ---- the address of this host ----


@pytest.fixture
def network(monkeypatch):
    """A host whose interfaces and routes are set by a test."""
    interfaces, ways = {}, {}
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(colocated, "address_of_interface", interfaces.get)
    monkeypatch.setattr(colocated, "_address_towards", lambda host, _: ways.get(host))
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces)))
    interfaces["lo"] = "127.0.0.1"
    return interfaces, ways


def test_the_interface_of_torchs_collectives_comes_first(network, monkeypatch):
    network[0].update(eth0="10.0.0.1", eth1="10.1.0.1")
    network[1]["head"] = "10.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "head")
    assert own_address(1.0) == "10.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1,eth0")
    assert own_address(1.0) == "10.1.0.1"


def test_interfaces_that_nccl_must_not_use_are_not_used(network, monkeypatch):
    network[0].update(docker0="172.17.0.1", eth0="10.0.0.1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^docker0,lo")
    assert own_address(1.0) == "10.0.0.1"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth0")
    assert own_address(1.0) == "10.0.0.1"


def test_on_the_launchers_own_host_a_loopback_route_is_not_used(network, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "head")
    network[1].update({"head": "127.0.1.1", "192.0.2.1": "10.0.0.7"})
    assert own_address(1.0) == "10.0.0.7"


def test_without_any_route_the_first_interface_is_used(network):
    network[0].update(eth0="10.0.0.1")
    assert own_address(1.0) == "10.0.0.1"


def test_a_host_without_an_address_must_be_given_one(network):
    with pytest.raises(ConfigError, match="set colocated_host= or REDUCTION_COLOCATED_HOST"):
        own_address(1.0)


def test_the_loopback_interface_has_the_loopback_address():
    assert colocated.address_of_interface("lo") == "127.0.0.1"
    assert colocated.address_of_interface("nothing") is None
    assert colocated._address_towards("127.0.0.1", 60.0) == "127.0.0.1"
    assert colocated._address_towards("no such host.", 60.0) is None

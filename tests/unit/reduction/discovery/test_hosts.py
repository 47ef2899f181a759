"""Clusters described by two lists of hosts."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.discovery.cluster import Cluster
from reduction.discovery.hosts import cluster_of_lists, hosts_in
from reduction.errors import ConfigError


def cluster(workers, reducers, own, port=50051):
    return cluster_of_lists(workers, reducers, port, lambda host: host == own)


@pytest.mark.parametrize(
    ("own", "role", "index", "bind"),
    [
        ("gpu-0", "worker", 0, None),
        ("gpu-1", "worker", 1, None),
        ("big", "reducer", 0, "0.0.0.0:6000"),
        ("10.0.0.5", "reducer", 1, "10.0.0.5:6000"),
        ("fd00::5", "reducer", 2, "[fd00::5]:6000"),
        ("elsewhere", None, None, None),
    ],
)
def test_each_listed_host_has_its_role(own, role, index, bind):
    reducers = ("big:6000", "10.0.0.5:6000", "[fd00::5]:6000")
    expected = Cluster("--hosts", reducers, ("gpu-0", "gpu-1"), role, index, bind)
    assert cluster("gpu-{0..1}", "big, 10.0.0.5,[fd00::5]", own, 6000) == expected


def test_no_reducers():
    assert cluster("a,b", "", "b") == Cluster("--hosts", (), ("a", "b"), "worker", 1)


@pytest.mark.parametrize(
    ("workers", "reducers", "message"),
    [
        ("a,b,a", "c", "--hosts has 'a' twice"),
        ("a,b", "b", "'b' is in both --hosts and --reducer-hosts: a host has one role"),
        ("", "b", "--hosts '' names no host with workers"),
        (" , ", "b", "names no host with workers"),
        ("a", "b:50051", "--reducer-hosts: 'b:50051' is not a host: write names without a port"),
        ("a", "http://b", "--reducer-hosts: 'http://b' is not a host"),
        ("gpu-{3..1}", "b", "--hosts: 'gpu-{3..1}' is not a host"),
    ],
)
def test_invalid_lists_are_refused(workers, reducers, message):
    with pytest.raises(ConfigError) as caught:
        cluster(workers, reducers, "a")
    assert message in str(caught.value)


def test_two_entries_for_this_host():
    with pytest.raises(ConfigError, match=r"this host is both 'a' and 'a\.lan' in the lists"):
        cluster_of_lists("a,b", "a.lan", 1, lambda host: host.startswith("a"))


@given(st.lists(st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]{1,3})?", fullmatch=True), unique=True))
def test_names_keep_their_order(names):
    assert hosts_in("--hosts", " , ".join(names)) == tuple(names)


@given(st.text(max_size=40))
def test_rubbish_is_hosts_or_an_error(text):
    with contextlib.suppress(ConfigError):
        found = hosts_in("--hosts", text)
        assert len(set(found)) == len(found)

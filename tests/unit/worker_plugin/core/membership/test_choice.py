"""The choice of reducers when there are more than the limit."""

from collections import Counter

from worker_plugin.core.link import Link
from worker_plugin.core.membership.choice import fair_choice


def links(*hosts):
    return [Link(number, f"{host}:{50000 + number}") for number, host in enumerate(hosts)]


def hosts_of(chosen):
    return Counter(link.address.rpartition(":")[0] for link in chosen)


def test_all_are_taken_up_to_the_limit():
    few = links("a", "a", "b")
    assert fair_choice(few, 3) == tuple(few)


def test_every_host_contributes_equally():
    many = links(*"a" * 32, *"b" * 32, *"c" * 32)
    assert hosts_of(fair_choice(many, 60)) == {"a": 20, "b": 20, "c": 20}


def test_large_hosts_make_up_for_small_ones():
    many = links(*"a" * 50, "b", *"c" * 5, "[::1]")
    assert hosts_of(fair_choice(many, 20)) == {"a": 13, "b": 1, "c": 5, "[::1]": 1}


def test_the_order_is_kept():
    many = links("a", "b", "a", "b", "a")
    assert [link.id for link in fair_choice(many, 4)] == [0, 1, 2, 3]

"""The choice of reducers when there are more than the limit."""

from collections import Counter

from worker_plugin.core.link import Link
from worker_plugin.core.membership.choice import fair_choice


def links(*hosts):
    return [Link(number, f"{host}:{50000 + number}") for number, host in enumerate(hosts)]


def hosts_of(chosen):
    return Counter(link.address.rpartition(":")[0] for link in chosen)


def test_as_many_as_there_may_be_are_all_taken():
    few = links("a", "a", "b")
    assert fair_choice(few, 3) == tuple(few)


def test_every_host_gives_as_many_as_any_other():
    many = links(*"a" * 32, *"b" * 32, *"c" * 32)
    assert hosts_of(fair_choice(many, 60)) == {"a": 20, "b": 20, "c": 20}


def test_what_small_hosts_do_not_have_the_large_ones_give():
    many = links(*"a" * 50, "b", *"c" * 5, "[::1]")
    assert hosts_of(fair_choice(many, 20)) == {"a": 13, "b": 1, "c": 5, "[::1]": 1}


def test_the_order_stays():
    many = links("a", "b", "a", "b", "a")
    assert [link.id for link in fair_choice(many, 4)] == [0, 1, 2, 3]

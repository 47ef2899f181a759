"""A rank's description of the reducers it was given."""

from reduction.limits import NAMED_BYTES_MAX
from reduction.model import NamedReducers

from worker_plugin.discovery.named import named_reducers


def test_order_does_not_matter():
    two = NamedReducers("10.0.0.1:1, 10.0.0.2:1", 2)
    assert named_reducers(["10.0.0.2:1", "10.0.0.1:1"]) == named_reducers(["10.0.0.1:1", "10.0.0.2:1"]) == two


def test_an_address_that_is_named_twice_counts_once():
    assert named_reducers(["a:1", "a:1"]) == NamedReducers("a:1", 1)


def test_ranks_agree_if_given_the_same_number_of_reducers():
    assert named_reducers(["red:1", "blue:1"]).agrees_with(named_reducers(["10.0.0.1:1", "10.0.0.2:1"]))
    assert not named_reducers(["red:1", "blue:1"]).agrees_with(named_reducers(["red:1"]))


def test_a_long_list_is_cut():
    named = named_reducers([f"10.0.{number // 250}.{number % 250}:50051" for number in range(500)])
    assert named.count == 500
    assert len(named.text.encode()) <= NAMED_BYTES_MAX
    assert named.text.endswith("... (500 in all)")


def test_unprintable_addresses_are_left_out():
    assert named_reducers(["a\n:1"]).text == "a:1... (1 in all)"

"""Weights: from where ranks and reducers run to numbers in the configuration."""

import pytest
from reduction.model import Peer, Peers, Place, Presence

from worker_plugin.core.link import Link, LinkPhase
from worker_plugin.core.membership.weights import CAUTION, weights, with_share


def host(number):
    return number.to_bytes(16)


def links(reducers, ranks):
    """Return links to reducers at these places, all of which see ranks at those places."""
    peers = tuple(
        Peer(rank, bytes([rank]) * 16, f"h{rank}", Presence.PRESENT, 1, place)
        for rank, place in enumerate(ranks)
    )
    found = []
    for number, place in enumerate(reducers):
        link = Link(number, f"r{number}:1", phase=LinkPhase.UP, incarnation=host(1000 + number), place=place)
        link.see(Peers(peers, draining=False), 0.0)
        found.append(link)
    return found


def places(*numbers, mbit=0):
    return [Place(host(number), mbit) for number in numbers]


NOWHERE = Place()
RANKS = places(1, 2, 3, 4)


@pytest.mark.parametrize("ranks", [RANKS, [NOWHERE] * 4, places(1, 1, 1, 1)])
def test_reducers_on_hosts_of_their_own_have_equal_weights(ranks):
    assert weights(links(places(11, 12, 13, 14), ranks)) == (1, 1, 1, 1)
    assert weights(links([NOWHERE] * 4, ranks)) == (1, 1, 1, 1)


def test_everything_on_one_host_has_equal_weights():
    assert weights(links(places(1, 1), places(1, 1, 1, 1))) == (1, 1)


def test_processes_of_a_machine_share_what_its_link_carries():
    assert weights(links(places(11, 11, 11, 11, 12), RANKS)) == (1, 1, 1, 1, 4)


def test_ranks_hosts_alone_share_alike():
    assert weights(links(RANKS, RANKS)) == (1, 1, 1, 1)


def test_a_remote_reducer_gets_a_larger_share_than_those_on_ranks_hosts():
    found = weights(links([*places(11, 12), *RANKS], RANKS))
    assert found[0] == found[1] > found[2] == found[3] == found[4] == found[5]
    assert found[0] / sum(found) == pytest.approx(0.3 * CAUTION, rel=0.01)


def test_with_enough_remote_reducers_those_on_ranks_hosts_stand_by():
    given = links([*places(11, 12, 13, 14), *RANKS], RANKS)
    assert weights(given) == (1, 1, 1, 1, 0, 0, 0, 0)
    assert with_share(given) == tuple(given[:4])


def test_they_stand_by_as_well_if_they_would_save_next_to_nothing():
    ranks = places(*range(1, 65))
    found = weights(links([*places(*range(101, 164)), *ranks], ranks))
    assert found == (1,) * 63 + (0,) * 64


def test_a_link_of_half_the_rate_gets_half_the_share():
    ranks = places(*range(1, 9), mbit=1000)
    reducers = [*places(*range(11, 18), mbit=1000), Place(host(18), 500)]
    assert weights(links(reducers, ranks)) == (2,) * 7 + (1,)


def test_a_link_that_nobody_knows_counts_as_the_median_of_the_others():
    reducers = [*places(11, 12, mbit=1000), Place(host(13), 2000), Place(host(14))]
    assert weights(links(reducers, places(1, 2, mbit=1000))) == (1, 1, 2, 1)


def test_a_hosts_link_is_the_slowest_that_anybody_there_says():
    reducers = [Place(host(11), 1000), Place(host(11), 500), Place(host(12), 500)]
    assert weights(links(reducers, RANKS)) == (1, 1, 2)


def test_nobody_gets_a_share_if_nobody_is_there():
    assert with_share([]) == ()

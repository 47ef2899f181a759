"""Weights: from the places of ranks and reducers to numbers in the configuration."""

import pytest
from reduction.model import Peer, Peers, Place, Presence

from worker_plugin.core.link import Link, LinkPhase
from worker_plugin.core.membership.weights import CAUTION, weights, with_share


def host(number):
    return number.to_bytes(16)


def links(reducers, ranks):
    """Return links to reducers at these places; all of the reducers see ranks at those places."""
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
NOWHERE_ELSE = Place(host(14))
RANKS, MANY = places(1, 2, 3, 4), places(*range(1, 65))


@pytest.mark.parametrize(
    ("reducers", "ranks", "expected"),
    [
        # Reducers on their own hosts, wherever the ranks are, or with no known place.
        *(
            (places(11, 12, 13, 14), ranks, (1, 1, 1, 1))
            for ranks in (RANKS, [NOWHERE] * 4, places(1, 1, 1, 1))
        ),
        ([NOWHERE] * 4, RANKS, (1, 1, 1, 1)),
        (places(1, 1), places(1, 1, 1, 1), (1, 1)),
        (RANKS, RANKS, (1, 1, 1, 1)),
        # Processes on one machine share its link's capacity.
        (places(11, 11, 11, 11, 12), RANKS, (1, 1, 1, 1, 4)),
        # A link of half the rate gets half the share.
        (
            [*places(*range(11, 18), mbit=1000), Place(host(18), 500)],
            places(*range(1, 9), mbit=1000),
            (*(2,) * 7, 1),
        ),
        # An unknown rate counts as the median of the others.
        (
            [*places(11, 12, mbit=1000), Place(host(13), 2000), NOWHERE_ELSE],
            places(1, 2, mbit=1000),
            (1, 1, 2, 1),
        ),
        # A host's link rate is the lowest that any process there reports.
        ([Place(host(11), 1000), Place(host(11), 500), Place(host(12), 500)], RANKS, (1, 1, 2)),
        # Reducers on ranks' hosts stand by if they would save next to nothing.
        ([*places(*range(101, 164)), *MANY], MANY, (1,) * 63 + (0,) * 64),
    ],
)
def test_weights_by_place_and_link_rate(reducers, ranks, expected):
    assert weights(links(reducers, ranks)) == expected


def test_a_remote_reducer_gets_a_larger_share_than_those_on_ranks_hosts():
    found = weights(links([*places(11, 12), *RANKS], RANKS))
    assert found[0] == found[1] > found[2] == found[3] == found[4] == found[5]
    assert found[0] / sum(found) == pytest.approx(0.3 * CAUTION, rel=0.01)


def test_with_enough_remote_reducers_those_on_ranks_hosts_stand_by():
    given = links([*places(11, 12, 13, 14), *RANKS], RANKS)
    assert weights(given) == (1, 1, 1, 1, 0, 0, 0, 0)
    assert with_share(given) == tuple(given[:4])


def test_without_reducers_no_shares_are_given():
    assert with_share([]) == ()

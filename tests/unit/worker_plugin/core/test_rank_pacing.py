"""A rank's part in pacing: its loss reports to the reducers, and its push rate afterwards."""

import math

import pytest
from reduction.model import LinkRate, Member, Peer, Peers, Place, Presence, Welcome
from reduction.pacing import BACK_OFF, UNPACED, Sent
from support.scenes.rank_scene import Scene, incarnation, nonce, send

from worker_plugin.core.actions import Throttle
from worker_plugin.core.events import Tick

HERE, THERE = b"this host.......", b"another host...."
TICK_S = 0.04


def throttles(actions):
    return {action.link: action.bytes_per_s for action in actions if isinstance(action, Throttle)}


def told(actions):
    return [action for action in actions if getattr(action, "frame", None).__class__ is LinkRate]


def lose_some(scene, now=1.0, links=(0, 1)):
    """Lose a tenth of the bytes sent within an interval; return the actions at its end."""
    scene.handle(Tick(dict.fromkeys(links, Sent())), now)
    return scene.handle(Tick(dict.fromkeys(links, Sent(2_000_000, 2_000, 200))), now + TICK_S)


def test_nothing_is_paced_or_reported_before_a_loss():
    scene = Scene().run()
    for step in range(10):
        sent = Sent(1_000_000 * step, 1_000 * step)
        actions = scene.handle(Tick({0: sent, 1: sent}), 1.0 + step * TICK_S)
        assert not throttles(actions)
        assert not told(actions)


@pytest.mark.parametrize("is_shorter_than_a_tick", [False, True])
def test_sent_counts_are_requested_while_anything_is_in_flight_and_once_after_it(is_shorter_than_a_tick):
    scene = Scene().run()
    assert not scene.core.wants_sent
    scene.issue()
    assert scene.core.wants_sent
    if not is_shorter_than_a_tick:
        scene.tick(1.0)
    scene.result("a", 0)
    assert scene.core.wants_sent
    scene.tick(1.0 + TICK_S)
    assert not scene.core.wants_sent


def test_losses_slow_down_pushes_and_the_rate_is_sent_to_all_reducers():
    scene = Scene().run()
    actions = lose_some(scene)
    rate = BACK_OFF * 4_000_000 / TICK_S
    assert told(actions) == [send("a", LinkRate.of(scene.core.pacing.own)), send("b", told(actions)[0].frame)]
    assert scene.core.pacing.own == pytest.approx(rate)
    assert throttles(actions) == pytest.approx({0: rate / 2, 1: rate / 2}, abs=1)
    assert not told(scene.tick(2.0)), "they know it"


def test_a_rate_reported_by_a_reducer_counts_if_it_is_lower():
    scene = Scene().run()
    scene.receive("a", LinkRate(10_000_000), 1.0)
    scene.receive("b", LinkRate(20_000_000), 1.0)
    assert throttles(scene.tick(1.1)) == {0: 5_000_000, 1: 5_000_000}
    scene.receive("a", LinkRate(0), 1.2)
    assert throttles(scene.tick(1.3)) == {0: 10_000_000, 1: 10_000_000}
    scene.receive("b", LinkRate(0), 1.4)
    assert throttles(scene.tick(1.5)) == dict.fromkeys((0, 1), UNPACED // 2), "nobody knows a limit any more"
    assert not throttles(scene.tick(1.6))


def test_a_rate_survives_a_new_epoch_and_is_sent_again_to_a_reducer_that_came_back():
    scene = Scene().run()
    lose_some(scene)
    rate = scene.core.pacing.own
    scene.lose("b", now=2.0)
    scene.tick(2.0)
    scene.welcome("b", now=2.0)
    scene.peers("b", "PP", now=2.0)
    scene.handle(Tick({0: Sent(), 1: Sent()}), 2.1)
    assert scene.core.pacing.own == rate, "no member has started, so none was asked"
    for reducer in "ab":
        scene.start(reducer, scene.core.epochs.number, now=2.2)
    assert [action.link for action in told(scene.tick(2.3))] == [1]


def begun(*, mbit, weights_of=None, own=HERE, other=THERE):
    """Return rank 0 with a reducer on its own host, and one on another."""
    scene = Scene(place=Place(own, mbit))
    scene.tick(0.0)
    peers = [
        Peer(rank, nonce(rank), f"h{rank}", Presence.PRESENT, place=Place(host, mbit))
        for rank, host in enumerate((own, other))
    ]
    for reducer, host in zip("ab", (own, b"a third host...."), strict=True):
        scene.receive(reducer, Welcome(incarnation(reducer), 4096, place=Place(host, mbit)))
        scene.receive(reducer, Peers(tuple(peers), False))
    scene.tick(1.0)
    for reducer in "ab":
        if scene.core.epochs.configuration.index_of(incarnation(reducer)) is not None:
            scene.start(reducer, scene.core.epochs.number, now=1.0)
    return scene


def test_streams_within_the_host_are_not_paced():
    scene = begun(mbit=0)
    members = scene.core.epochs.configuration.members
    assert Member("a:1", incarnation("a"), members[0].weight) in members
    actions = lose_some(scene, now=2.0)
    assert list(throttles(actions)) == [1]


@pytest.mark.parametrize(("mbit", "is_paced"), [(0, False), (1000, True)])
def test_rank_0_begins_at_the_rate_of_the_links_if_all_report_theirs(mbit, is_paced):
    scene = begun(mbit=mbit)
    assert math.isinf(scene.core.pacing.own) != is_paced
    assert bool(throttles(scene.tick(1.1))) == is_paced

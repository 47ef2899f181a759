"""Pushes, results, acknowledgements and release within an epoch, for one rank through the communicator."""

import pytest
from reduction.errors import OutOfOrder
from reduction.model import Ack, Configuration, Configure, Hello, Member, Minimum
from support.scenes.rank_scene import (
    CHUNK,
    INSTANCE,
    Scene,
    data,
    epoch,
    failure,
    incarnation,
    of_kib,
    push,
    send,
    store,
)

from worker_plugin.core.actions import Deliver, PushChunk, Release

# ---- pushes and results ----


def test_chunks_go_to_their_owners_within_credit():
    scene = Scene(credit_bytes=2048)
    scene.tick(0.0)
    for reducer in "ab":
        scene.welcome(reducer, credit=2048)
    for reducer in "ab":
        scene.peers(reducer, "PP")
    for reducer in "ab":
        scene.start(reducer)
    assert scene.issue(6) == [
        push(*chunk, kib=6) for chunk in (("a", 0, 0), ("b", 0, 3), ("a", 0, 1), ("b", 0, 4))
    ]
    assert scene.result("a", 0, 0) == [store(0, 0), push("a", 0, 2, kib=6)]
    assert scene.result("b", 0, 3) == [store(0, 3072), push("b", 0, 5, kib=6)]


def test_a_lane_that_is_ahead_waits_for_the_slowest():
    """With shares of 2 and 1 the smaller one waits for the larger, whose result then lets both push."""
    scene = Scene(rank=1, credit_bytes=1 << 20)
    scene.meet()
    members = tuple(Member(f"{name}:1", incarnation(name), weight) for name, weight in (("a", 2), ("b", 1)))
    scene.receive("a", Configure(Configuration(INSTANCE, 1, CHUNK, members)))
    for reducer in "ab":
        scene.start(reducer)
    pushed = {0: [], 1: []}
    for action in scene.issue(48):
        pushed[action.link].append(action.chunk)
    for chunk in pushed[1]:
        assert scene.result("b", 0, chunk) == [store(0, chunk * CHUNK)]
    # One chunk of the smaller share counts as far as two of the larger.
    links = [{action.link for action in scene.result("a", 0, chunk)[1:]} for chunk in pushed[0][:2]]
    assert links == [{0}, {0, 1}]


def test_an_empty_collective_has_its_header_pushed_and_is_delivered():
    scene = Scene().run()
    assert scene.issue(0) == [PushChunk(0, 1, 0, 0, of_kib(0), 0, 0, 0, True)]
    assert scene.result("a", 0, payload=data(0)) == [store(0, 0, nbytes=0), Deliver(0)]


def test_collectives_are_delivered_as_they_complete():
    scene = Scene().run()
    scene.issue(2)
    scene.issue()
    assert scene.result("b", 0, 1) == [store(0, 1024)]
    assert scene.result("b", 1) == [store(1, 0), Deliver(1)]
    assert scene.result("a", 0, 0) == [store(0, 0), Deliver(0)]


def test_a_result_of_another_epoch_or_of_none_is_ignored_and_one_before_start_fails():
    scene = Scene(rank=1)
    scene.meet()
    assert scene.result("a", 0) == []
    scene.enter(1)
    scene.enter(2)
    assert scene.result("a", 0, epoch=1) == []
    assert failure(scene.result("a", 0, epoch=2))[0] is OutOfOrder


@pytest.mark.parametrize(("reducer", "seq", "chunk"), [("a", 0, 1), ("a", 1, 0), ("b", 0, 0), ("a", 9, 0)])
def test_a_result_out_of_turn_fails(reducer, seq, chunk):
    scene = Scene().run()
    scene.issue(4)
    kind, text = failure(scene.result(reducer, seq, chunk))
    assert kind is OutOfOrder
    assert text.startswith(f"{reducer}:1 sent chunk {chunk} of collective {seq}, ")


@pytest.mark.parametrize("nbytes", [0, 1023, 1025])
def test_a_result_of_another_size_fails(nbytes):
    scene = Scene().run()
    scene.issue()
    assert failure(scene.result("a", 0, payload=data(nbytes))) == (
        OutOfOrder,
        f"a:1 sent {nbytes} bytes for chunk 0 of collective 0, which has 1024",
    )


# ---- acknowledgements ----


def test_an_acknowledgement_waits_10_ms_and_goes_to_every_member():
    scene = Scene().run()
    scene.issue()
    scene.issue()
    scene.result("a", 0, now=1.0)
    scene.result("b", 1, now=1.008)  # does not put it off
    assert scene.tick(1.009) == []
    assert scene.tick(1.01) == [send("a", Ack(2)), send("b", Ack(2))]
    assert scene.tick(9.0) == []


def test_a_push_carries_an_acknowledgement_instead_of_a_message():
    scene = Scene().run()
    scene.issue()
    scene.result("a", 0, now=1.0)
    assert scene.issue(now=1.0) == [push("b", 1, held=1)]
    assert scene.tick(1.01) == [send("a", Ack(1))]


def test_hello_acknowledges_to_a_member_that_has_not_started():
    scene = Scene(rank=1).run()
    scene.issue()
    scene.result("a", 0, now=1.0)
    assert scene.enter(2) == [send("a", Hello(epoch(2), 1)), send("b", Hello(epoch(2), 1))]
    assert scene.tick(2.0) == []
    assert scene.start("a", 2, minimum=1) == []
    assert scene.tick(3.0) == []


# ---- release ----


def test_a_contribution_is_released_when_everybody_holds_the_result():
    scene = Scene().run()
    scene.issue()
    scene.issue()
    scene.result("a", 0)
    assert scene.receive("b", Minimum(1)) == [Release(0)]
    assert scene.result("b", 1, minimum=2) == [store(1, 0), Deliver(1), Release(1)]


def test_a_minimum_beyond_what_this_rank_holds_is_capped():
    scene = Scene().run()
    scene.issue()
    assert scene.receive("b", Minimum(9)) == []
    scene.result("a", 0)
    assert scene.receive("b", Minimum(9)) == [Release(0)]


def test_nothing_is_released_before_all_members_have_started():
    scene = Scene(rank=1).run()
    scene.issue()
    scene.result("a", 0)
    scene.enter(2)
    assert scene.start("a", 2, minimum=1) == []
    assert scene.receive("a", Minimum(1)) == []
    assert scene.start("b", 2, minimum=1) == [Release(0)]


def test_nothing_is_released_before_this_ranks_own_push():
    # Collective 0 was complete here but not at another rank, so this rank has to push it again.
    scene = Scene(rank=1, reducers="a", credit_bytes=CHUNK)
    scene.tick(0.0)
    scene.welcome("a", credit=CHUNK)
    scene.enter(reducers="a")
    scene.start("a")
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.result("a", 0, 1)
    scene.enter(2)
    assert scene.start("a", 2, minimum=0) == [push("a", 0, 0, kib=2, number=2, held=1, is_awaited=False)]
    assert scene.receive("a", Minimum(1)) == [], "chunk 1 has not gone out yet"
    assert scene.result("a", 0, 0, epoch=2) == [
        push("a", 0, 1, kib=2, number=2, held=1, is_awaited=False),
        Release(0),
    ]

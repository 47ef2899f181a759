"""Where a payload belongs whose first bytes have come; one rank, through the communicator.

A wrong answer writes into a result that is whole, or of another collective: what is not surely needed has no place.
"""

import pytest
from reduction.errors import LocalProtocolError, ReducerUnavailable
from support.rank_scene import CHUNK, Scene, data, push, store

from worker_plugin.core.actions import Deliver, Release
from worker_plugin.core.events import Broke


def two_ranks():
    return Scene(rank=1).run()


def test_the_oldest_push_has_its_place_in_the_result():
    scene = two_ranks()
    scene.issue(4)
    assert scene.place("a", 0, 0) == 0
    assert scene.place("b", 0, 2) == 2 * CHUNK
    scene.result("a", 0, 0)
    assert scene.place("a", 0, 1) == CHUNK


def test_asking_changes_nothing():
    scene = two_ranks()
    scene.issue(2)
    assert [scene.place("a", 0, 0) for _ in range(3)] == [0, 0, 0]
    assert scene.result("a", 0, 0) == [store("a", 0, 0)]
    assert scene.result("b", 0, 1) == [store("b", 0, CHUNK), Deliver(0)]


def test_an_empty_result_has_a_place_of_no_bytes():
    scene = two_ranks()
    scene.issue(0)
    assert scene.place("a", 0, nbytes=0) == 0


def test_a_last_chunk_that_is_shorter():
    scene = Scene(rank=1, reducers="a")
    scene.meet()
    scene.enter(chunk_bytes=2048)
    scene.start("a")
    scene.issue(3)
    scene.result("a", 0, 0, payload=data(2048))
    assert scene.place("a", 0, 1, nbytes=2048) is None
    assert scene.place("a", 0, 1, nbytes=1024) == 2048


@pytest.mark.parametrize(
    ("reducer", "seq", "chunk"),
    [("a", 0, 1), ("a", 1, 0), ("b", 0, 0), ("a", 9, 0), ("a", 0, 9)],
    ids=["next but one", "next collective", "another reducer's", "not issued", "no such chunk"],
)
def test_what_is_not_the_oldest_push_has_none(reducer, seq, chunk):
    scene = two_ranks()
    scene.issue(4)
    scene.issue(4)
    assert scene.place(reducer, seq, chunk) is None


def test_nothing_has_one_without_a_push():
    assert two_ranks().place("a", 0) is None


@pytest.mark.parametrize("nbytes", [0, 1, CHUNK - 1, CHUNK + 1, 4 << 20])
def test_a_payload_of_another_size_has_none(nbytes):
    scene = two_ranks()
    scene.issue()
    assert scene.place("a", 0, nbytes=nbytes) is None


def test_before_start_there_is_none():
    scene = Scene(rank=1)
    scene.meet()
    scene.issue()
    assert scene.place("a", 0) is None
    scene.enter()
    assert scene.place("a", 0) is None
    assert scene.start("a") == [push("a", 0)]
    assert scene.place("a", 0) == 0


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_a_result_of_another_epoch_has_none(epoch):
    scene = two_ranks()
    scene.issue()
    scene.enter(2)
    scene.start("a", 2)
    assert scene.place("a", 0, epoch=epoch) is None
    assert scene.place("a", 0, epoch=2) == 0


def test_a_new_epoch_takes_the_place_of_what_is_on_its_way():
    scene = two_ranks()
    scene.issue()
    assert scene.place("a", 0) == 0
    scene.enter(2)
    assert scene.place("a", 0) is None
    assert scene.place("a", 0, epoch=2) is None, "nothing was pushed in it yet"


def test_what_is_here_already_has_none_when_it_comes_again():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.enter(2)
    scene.start("a", 2)
    assert scene.place("a", 0, 0, epoch=2) is None
    assert scene.result("a", 0, 0, epoch=2) == []
    assert scene.place("a", 0, 1, epoch=2) == CHUNK


def test_a_delivered_collective_has_none_when_it_comes_again():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue()
    assert scene.result("a", 0) == [store("a", 0, 0), Deliver(0)]
    scene.enter(2)
    assert scene.start("a", 2) == [push("a", 0, number=2, held=1)]
    assert scene.place("a", 0, epoch=2) is None


def test_a_released_collective_has_none_when_it_comes_again():
    scene = two_ranks()
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.result("b", 0, 1)
    scene.enter(2)
    scene.start("a", 2)
    assert scene.start("b", 2, minimum=1) == [Release(0)]
    assert scene.place("a", 0, epoch=2) is None


def test_another_grid_has_other_places():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue(4)
    scene.result("a", 0, 0)
    scene.enter(2, chunk_bytes=2048)
    scene.start("a", 2)
    assert scene.place("a", 0, 0, epoch=2, nbytes=CHUNK) is None
    assert scene.place("a", 0, 0, epoch=2, nbytes=2048) == 0


def test_a_lost_stream_has_none():
    scene = two_ranks()
    scene.issue()
    scene.lose("a", ReducerUnavailable("gone"), now=1.0)
    assert scene.place("a", 0) is None


# ---- the communicator's state ----


def test_there_is_none_while_closing_or_after():
    scene = two_ranks()
    scene.issue()
    scene.result("a", 0)
    scene.issue()
    assert scene.place("b", 1) == 0
    scene.close()
    assert scene.place("b", 1) is None


def test_there_is_none_after_a_failure():
    scene = two_ranks()
    scene.issue()
    assert scene.place("a", 0) == 0
    scene.handle(Broke(LocalProtocolError("a bug")))
    assert scene.place("a", 0) is None


def test_a_new_epoch_takes_back_the_memory_of_results_that_still_come():
    """What comes of an old epoch is not checked any more, so it must not lie where a checked result does."""
    scene = Scene(1).run()
    scene.issue(4)
    assert scene.place("a", 0, 0) == 0
    assert scene.diverted == []
    scene.enter(2)
    assert scene.diverted == ["a", "b"]
    assert scene.place("a", 0, 0) is None
    scene.enter(3)
    assert scene.diverted == ["a", "b"], "nothing was received since"
    scene.start("b", 3)
    scene.lose("b")
    scene.enter(4)
    assert scene.diverted == ["a", "b"], "its stream has ended"

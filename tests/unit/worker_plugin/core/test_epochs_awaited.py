"""Whether a push awaits its result; one rank, through the communicator.

A wrong answer lets a result be received in memory that is whole, or another collective's.
"""

from support.scenes.rank_scene import CHUNK, Scene, data, push, store

from worker_plugin.core.actions import Deliver, Release


def test_the_first_push_of_a_chunk_awaits_its_result():
    scene = Scene(rank=1).run()
    assert scene.issue(2) == [push("b", 0, 1, kib=2), push("a", 0, 0, kib=2)]


def test_a_chunk_whose_result_is_here_awaits_none():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.enter(2)
    assert scene.start("a", 2) == [
        push("a", 0, 0, kib=2, number=2, is_awaited=False),
        push("a", 0, 1, kib=2, number=2),
    ]
    assert scene.result("a", 0, 0, epoch=2) == []
    assert scene.result("a", 0, 1, epoch=2) == [store(0, CHUNK), Deliver(0)]


def test_a_delivered_collective_awaits_none():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue()
    assert scene.result("a", 0) == [store(0, 0), Deliver(0)]
    scene.enter(2)
    assert scene.start("a", 2) == [push("a", 0, number=2, held=1, is_awaited=False)]
    assert scene.result("a", 0, epoch=2) == []


def test_a_delivered_collective_awaits_none_beside_one_that_is_not():
    scene = Scene(rank=1).run()
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.result("b", 0, 1)
    scene.enter(2)
    scene.start("a", 2)
    assert scene.start("b", 2, minimum=1) == [Release(0)]
    assert [action.is_awaited for action in scene.issue(1)] == [True]


def test_on_another_grid_all_chunks_are_awaited_again():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue(4)
    scene.result("a", 0, 0)
    scene.enter(2, chunk_bytes=2048)
    assert [action.is_awaited for action in scene.start("a", 2)] == [True, True]
    assert scene.result("a", 0, 0, epoch=2, payload=data(2048)) == [store(0, 0, nbytes=2048)]


def test_a_new_epoch_takes_back_the_memory_of_results_that_still_come():
    """What comes of an old epoch is not checked any more, so it must not lie where a checked result does."""
    scene = Scene(1).run()
    scene.issue(4)
    assert scene.diverted == []
    scene.enter(2)
    assert scene.diverted == ["a", "b"]
    scene.enter(3)
    assert scene.diverted == ["a", "b"], "nothing was pushed since"
    scene.start("b", 3)
    scene.lose("b")
    scene.enter(4)
    assert scene.diverted == ["a", "b"], "its stream has ended"

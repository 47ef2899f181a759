"""A rank's own error before the others can learn of it: the rank still joins, to report the cause."""

import pytest
from reduction.errors import JobBusy, ReducerUnavailable, WorkerFailed, WorkerLost
from reduction.model import Abort, Configure
from support.scenes.rank_scene import Scene, epoch, send

from worker_plugin.core.actions import Closed, Fail, Open
from worker_plugin.core.events import Broke

ERROR = WorkerFailed("MemoryError: too much")


def told(reducers="ab", rank=0):
    frame = Abort(WorkerFailed.code, f"rank {rank} (h{rank}): {ERROR}")
    return [*(send(reducer, frame) for reducer in reducers), Closed()]


def broken(rank=0, **changes):
    """Return a rank that failed before it dialled."""
    scene = Scene(rank, **changes)
    assert scene.handle(Broke(ERROR)) == [Fail(ERROR, is_over=False)]
    return scene


def test_rank_0_reports_its_error_when_it_would_make_the_first_epoch():
    scene = broken()
    assert scene.tick(1.0) == [Open(number, f"{name}:1", scene.join()) for number, name in enumerate("ab")]
    assert scene.welcome("a", 2.0) == scene.welcome("b", 2.0) == []
    assert scene.peers("a", "PP", 3.0) == scene.peers("b", "P-", 3.0) == []
    assert scene.peers("b", "PP", 4.0) == told()
    assert scene.tick(5.0) == []


def test_other_ranks_report_their_error_at_the_first_epoch():
    scene = broken(1)
    scene.tick(1.0)
    scene.welcome("a", 2.0)
    scene.welcome("b", 2.0)
    assert scene.peers("a", "PP", 3.0) == scene.peers("b", "PP", 3.0) == []
    assert scene.receive("b", Configure(epoch(1)), 4.0) == told(rank=1)


def test_an_error_received_meanwhile_ends_the_wait():
    scene = broken(1)
    scene.tick(1.0)
    scene.welcome("a", 2.0)
    assert scene.abort("a", WorkerLost("rank 0"), 3.0) == told("a", rank=1)


def test_a_reducer_that_refuses_or_is_gone_is_redialed_unless_the_refusal_is_final():
    scene = broken()
    scene.tick(1.0)
    assert scene.abort("a", JobBusy("the last life"), 2.0) == []
    assert scene.lose("a", now=2.0) == scene.lose("b", ReducerUnavailable("b"), now=2.0) == []
    assert len(scene.tick(5.0)) == 2
    assert scene.abort("a", WorkerFailed("rank 1"), 6.0) == [Closed()]


@pytest.mark.parametrize(("closes", "end"), [(False, 100.0), (True, 8.0)])
def test_it_waits_for_late_ranks_until_the_collective_or_close_timeout(closes, end):
    scene = broken(timeout_s=100.0)
    scene.tick(1.0)
    scene.welcome("a", 2.0)
    assert not closes or scene.close(3.0) == []
    assert scene.tick(end - 0.1) == []
    assert scene.tick(end) == told("a")


@pytest.mark.parametrize("frame", [Configure(epoch(1)), Abort(12, "rank 0")])
def test_frames_of_streams_that_have_ended_are_ignored(frame):
    scene = broken(1)
    scene.tick(1.0)
    scene.welcome("a", 2.0)
    scene.lose("a", now=3.0)
    assert scene.receive("a", frame, 3.0) == scene.peers("a", "PP", 3.0) == []


def test_collectives_and_further_errors_are_ignored():
    scene = broken()
    assert scene.issue() == scene.handle(Broke(WorkerFailed("more"))) == []
    assert scene.core.error is ERROR


def test_an_error_while_no_reducer_is_up_is_reported_to_the_first_one_back():
    scene = Scene().run()
    scene.issue()
    scene.lose("a", now=1.0)
    scene.lose("b", now=1.0)
    assert scene.handle(Broke(ERROR), 2.0) == [Fail(ERROR, is_over=False)]
    assert [type(action) for action in scene.tick(3.0)] == [Open, Open]
    assert scene.welcome("b", 4.0) == told("b")

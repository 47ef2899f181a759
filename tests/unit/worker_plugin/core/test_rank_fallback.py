"""A rank with no reducer left: it asks for its own, once, and continues there."""

import pytest
from reduction.errors import ReducerUnavailable
from reduction.model import Welcome
from support.scenes.rank_scene import CREDIT, Scene, epoch, failure, incarnation, peers

from worker_plugin.core.actions import Embed, Log, Open, PushChunk
from worker_plugin.core.events import FellBack, NoFallback, Received


def alone(rank=0, **changes):
    """Return a rank whose only reducer is lost at 0 s, with a collective in flight."""
    scene = Scene(rank, "a", **{"may_fall_back": True} | changes).run()
    scene.issue()
    scene.lose("a", now=0.0)
    return scene


@pytest.mark.parametrize(("rank", "level"), [(0, 30), (1, 20)])
def test_after_the_join_timeout_it_requests_a_fallback_and_logs_it(rank, level):
    scene = alone(rank)
    assert Embed() not in scene.tick(59.9)
    actions = scene.tick(60.0)
    assert [type(action) for action in actions][-2:] == [Log, Embed]
    assert actions[-2].level == level
    assert "60 s (join_timeout_s): a:1 (no answer)" in actions[-2].text
    assert "fallback='embedded'" in actions[-2].text


@pytest.mark.parametrize("has_begun", [True, False])
def test_the_collective_is_pushed_again_to_the_fallback(has_begun):
    scene = alone() if has_begun else Scene(0, "a", may_fall_back=True)
    if not has_begun:
        scene.tick(0.0)
        scene.lose("a", now=0.0)
        scene.issue()
    assert scene.tick(60.0)[-1] == Embed()
    scene.handle(FellBack("f:1"), 62.0)
    assert Open(1, "f:1", scene.join()) in scene.tick(62.0)
    scene.handle(Received(1, Welcome(incarnation("f"), CREDIT)), 63.0)
    scene.handle(Received(1, peers("PP")), 63.0)
    number = 2 if has_begun else 1
    assert scene.core.epochs.configuration == epoch(number, "f")
    pushes = scene.start("b", number)  # link 1
    assert [type(action) for action in pushes] == [PushChunk]


@pytest.mark.parametrize("has_begun", [True, False])
def test_the_join_timeout_starts_over_once_the_fallback_has_started(has_begun):
    # The start of a reducer may take longer than `join_timeout_s`.
    scene = alone() if has_begun else Scene(0, "a", may_fall_back=True)
    scene.tick(0.0)
    if not has_begun:
        scene.lose("a", now=0.0)
    assert Embed() in scene.tick(60.0)
    assert scene.tick(500.0) == [Log(30, "waiting for the reducer that rank 0 starts on its own host")]
    scene.handle(FellBack("f:1"), 500.0)
    assert Embed() not in scene.tick(559.9)
    assert scene.core.error is None
    assert failure(scene.tick(560.0))[0] is ReducerUnavailable


def test_a_reducer_that_came_back_meanwhile_makes_up_for_a_fallback_that_never_serves():
    scene = alone()
    scene.tick(60.0)
    scene.welcome("a", now=61.0)
    scene.handle(FellBack("f:1"), 62.0)
    scene.handle(Received(0, peers("PP")), 63.0)
    scene.start("a", 2)
    scene.tick(125.0)
    assert scene.core.error is None


def test_a_closing_rank_requests_no_fallback():
    scene = Scene(0, "a", may_fall_back=True, close_timeout_s=500.0).run()
    scene.issue()
    scene.result("a", 0)
    scene.close(now=0.0)
    scene.lose("a", now=0.0)
    assert Embed() not in scene.tick(60.0)


NOBODY = ReducerUnavailable("waited in vain for rank 0 to start the embedded reducer")


def test_without_a_fallback_it_fails_unless_a_reducer_came_back_meanwhile():
    # Rank 0 may have seen the reducer before its own time was up, and then starts none.
    scene = alone(1)
    scene.tick(60.0)
    assert failure(scene.handle(NoFallback(NOBODY), 61.0)) == (ReducerUnavailable, str(NOBODY))
    scene = alone(1)
    scene.tick(60.0)
    scene.welcome("a", now=61.0)
    assert scene.handle(NoFallback(NOBODY), 120.0) == []
    assert scene.core.error is None
    scene.lose("a", now=121.0)
    assert Embed() in scene.tick(181.0)


def test_an_idle_rank_requests_a_fallback_too():
    # It may hold a result that another rank lacks and whose reducer has died in between.
    scene = Scene(0, "a", may_fall_back=True).run()
    scene.lose("a", now=0.0)
    assert Embed() not in scene.tick(59.9)
    assert Embed() in scene.tick(60.0)
    scene.handle(NoFallback(NOBODY), 61.0)
    assert scene.core.error is None
    scene.issue(now=62.0)
    assert scene.tick(120.9) == []
    assert failure(scene.tick(121.0))[0] is ReducerUnavailable

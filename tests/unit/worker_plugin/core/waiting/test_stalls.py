"""A rank whose collectives take too long reports whom it waits for."""

from dataclasses import replace

import pytest
from reduction.errors import CollectiveTimeout
from reduction.model import Configure, Peer, Presence, Waiting
from support.scenes.rank_scene import Scene, epoch, failure, of_kib

from worker_plugin.core.actions import Log

INFO, WARNING = 20, 30


def waiting(*ranks, seq=0, chunk=0, waited_s=5.0, count=None):
    missing = tuple(Peer(rank, bytes(16), f"h{rank}", Presence.PRESENT) for rank in ranks)
    return Waiting(seq, chunk, waited_s, len(ranks) if count is None else count, missing)


def stalled(rank=0, world_size=4, **changes):
    scene = Scene(rank, world_size=world_size, **changes).run()
    scene.issue(2, now=0.0)
    return scene


def logs(actions):
    return [action for action in actions if isinstance(action, Log)]


def logged(actions):
    (log,) = logs(actions)
    return log.level, log.text


def test_the_warning_names_all_that_reducers_wait_for():
    scene = stalled()
    scene.receive("a", waiting(2, 3))
    scene.receive("b", waiting(1, 3, chunk=1))
    level, text = logged(scene.tick(5.0))
    assert level == WARNING
    assert text.startswith("rank 1 (h1), rank 2 (h2), rank 3 (h3) are late by 5 s: collective 0 ")
    assert f"({of_kib(2)}) is not done after 5 s, 2 of 2 chunks are missing at a:1, b:1" in text
    assert text.endswith("giving up in 595 s")


@pytest.mark.parametrize(
    ("rank", "ranks", "who", "whose"),
    [
        (0, (3,), "rank 3 (h3) is late by 5 s: ", "that rank's log"),
        (0, (1, 3), "rank 1 (h1), rank 3 (h3) are late by 5 s: ", "those ranks' logs"),
        (0, (), "a:1, b:1 have sent no result for 5 s: ", "the ranks' and reducers' logs"),
        # This rank itself is not named.
        (1, (1, 3), "rank 3 (h3) is late by 5 s: ", "that rank's log"),
    ],
)
def test_the_timeout_names_late_ranks(rank, ranks, who, whose):
    scene = stalled(rank, timeout_s=5.0)
    scene.receive("a", waiting(*ranks))
    kind, text = failure(scene.tick(5.0))
    assert kind is CollectiveTimeout
    assert text.startswith(who)
    assert text.endswith(f"; see {whose}, or raise timeout_s (5 s)")


@pytest.mark.parametrize(
    ("rank", "missing", "count", "level"),
    [
        (0, (3,), 1, WARNING),
        (1, (3,), 1, INFO),
        (2, (3,), 1, INFO),
        (1, (0, 3), 2, WARNING),
        (2, (0, 3), 2, INFO),
        (3, (0, 1, 2), 3, WARNING),
        (1, (3,), 9, WARNING),  # some of the waiting ranks may not have received their names
        (1, (), 0, WARNING),  # without news each may be cut off in its own way
    ],
)
def test_the_lowest_waiting_rank_logs_a_warning_and_the_others_info(rank, missing, count, level):
    scene = stalled(rank)
    if missing:
        scene.receive("a", waiting(*missing, count=count))
    assert logged(scene.tick(5.0))[0] == level


@pytest.mark.parametrize(
    "news",
    [
        waiting(3, chunk=1),  # its result has arrived
        waiting(3, chunk=2),  # there is no such chunk
        waiting(3, seq=1),  # not issued
    ],
)
def test_news_that_is_not_about_a_missing_chunk_is_ignored(news):
    scene = stalled()
    scene.result("b", 0, 1)
    scene.receive("a", news)
    assert "late by" not in logged(scene.tick(5.0))[1]


def test_news_is_forgotten_with_its_stream():
    scene = stalled(1)
    scene.receive("a", waiting(3))
    scene.lose("a")
    scene.receive("b", Configure(epoch(2, "b")))
    scene.start("b", 2)
    assert "late by" not in logged(scene.tick(5.0))[1]


def test_news_of_an_epoch_that_does_not_start_names_no_late_rank():
    scene = stalled(1)
    scene.receive("a", replace(waiting(3), epoch=1))
    assert "late by" not in logged(scene.tick(5.0))[1]
    idle = Scene(1).run()
    idle.receive("a", replace(waiting(1), epoch=1))
    assert idle.tick(5.0) == []


@pytest.mark.parametrize(
    ("lost", "back", "who"),
    [
        ("a", "", "b:1 has sent no result for 600 s: "),
        ("ab", "", "no reducer is left, and no result has come for 600 s: "),
        ("ab", "ab", "the ranks have not met again at a reducer, and no result has come for 600 s: "),
    ],
)
def test_while_no_epoch_runs_a_collective_can_only_time_out(lost, back, who):
    scene = stalled(1, join_timeout_s=1e6)
    for reducer in lost:
        scene.lose(reducer)
    said = scene.tick(0.1)
    for reducer in back:
        scene.welcome(reducer, now=0.1)
    said += scene.tick(6.0)
    assert all("collective" not in log.text for log in logs(said))
    kind, text = failure(scene.tick(600.0))
    assert kind is CollectiveTimeout
    assert text.startswith(who)


def test_a_reducer_that_is_not_waited_for_is_not_blamed():
    scene = Scene(1, world_size=4, timeout_s=5.0).run()
    scene.issue(now=0.0)  # its chunk is at "a"
    scene.issue(now=0.0)  # and this one's at "b"
    scene.lose("a")
    kind, text = failure(scene.tick(5.0))
    assert kind is CollectiveTimeout
    assert text.startswith("no result has come for 5 s: collective 0")
    assert "b:1" not in text


def small_ones(count):
    """Return a scene with this many collectives of one chunk, on two reducers alternately."""
    scene = Scene(world_size=4).run()
    for _ in range(count):
        scene.issue(now=0.0)
    return scene


def test_a_long_queue_is_not_a_stall():
    scene = small_ones(40)
    for seq in range(40):
        now = seq + 1.0  # each arrives 6 s or more after its push, 2 s after the one before it
        assert logs(scene.tick(now)) == []
        scene.result("ab"[seq % 2], seq, now=now)


def test_a_cause_is_warned_of_once_in_a_while_however_many_collectives_it_delays():
    scene = small_ones(2)
    for seq, reducer in enumerate("ab"):
        scene.receive(reducer, waiting(3, seq=seq))
    assert logged(scene.tick(5.0))[1].startswith("rank 3 (h3) is late by 5 s: collective 0 ")
    scene.result("a", 0, now=5.0)
    assert logs(scene.tick(9.9)) == []
    assert logged(scene.tick(10.0))[1].startswith("rank 3 (h3) is late by 10 s: collective 1 ")
    assert logs(scene.tick(16.0)) == []


def test_another_cause_is_warned_of_at_once():
    scene = small_ones(2)
    assert logged(scene.tick(5.0))[1].startswith("a:1 has sent no result for 5 s: collective 0 ")
    scene.result("a", 0, now=5.0)
    scene.receive("b", waiting(2, seq=1))
    assert logged(scene.tick(5.1))[1].startswith("rank 2 (h2) is late by 5 s: collective 1 ")


def test_a_collective_that_makes_progress_is_not_a_stall():
    scene = Scene().run()
    scene.issue(4, now=0.0)
    for now, reducer, chunk in ((4.0, "a", 0), (8.0, "b", 2)):  # a slow link
        assert scene.tick(now - 0.04) == []
        scene.result(reducer, 0, chunk, now=now)
        assert scene.tick(now) == []
    assert scene.tick(12.9) == []
    level, text = logged(scene.tick(13.0))
    assert level == WARNING
    assert "sent no result for 5 s: " in text
    assert "is not done after 13 s, 2 of 4 chunks are missing" in text


def test_a_rank_that_others_wait_for_logs_it_once():
    scene = Scene(1, world_size=4).run()
    scene.receive("b", waiting(1, seq=0, waited_s=4.9))
    assert scene.tick(0.0) == []
    for waited_s in (5.2, 5.7):
        scene.receive("b", waiting(1, seq=0, waited_s=waited_s))
        logs = [action for action in scene.tick(0.0) if isinstance(action, Log)]
        if waited_s == 5.2:
            assert logs == [
                Log(WARNING, "this rank is late by 5 s: others are waiting for it to issue collective 0")
            ]
        else:
            assert logs == []


def test_a_late_rank_logs_it_once_even_if_reducers_wait_for_different_collectives():
    scene = Scene(1, world_size=4).run()
    texts = []
    for tick in range(1000):
        for seq, reducer in ((1, "a"), (0, "b")):
            scene.receive(reducer, waiting(1, seq=seq, waited_s=5.0 + tick * 0.04))
        texts += [action.text for action in scene.tick(tick * 0.04) if isinstance(action, Log)]
    assert texts == ["this rank is late by 5 s: others are waiting for it to issue collective 0"]


def test_outdated_news_is_not_logged():
    scene = Scene(1, world_size=4).run()
    scene.issue(now=0.0)
    scene.receive("a", waiting(1, seq=0, waited_s=6.0))
    scene.result("a", 0, now=0.1)
    assert [action for action in scene.tick(0.2) if isinstance(action, Log)] == []

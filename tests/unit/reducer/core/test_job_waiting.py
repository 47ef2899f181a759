"""A job's reports about ranks that others wait for."""

import pytest
from reduction.model import Peer, Presence, Waiting
from unit.reducer.core.scene import SUM, Scene, nonce, running, to_all

from reducer.core.actions import Send, Warn


def absent(rank, presence=Presence.PRESENT):
    return Peer(rank, nonce(rank), f"h{rank}", presence)


def warnings(actions):
    return [action.text for action in actions if isinstance(action, Warn)]


def test_all_ranks_are_repeatedly_notified_of_missing_ranks():
    scene = running(3)
    scene.push(1, now=10.0)
    assert scene.tick(10.4) == []
    assert scene.tick(10.5) == to_all(Waiting(0, 0, 0.5, 2, (absent(0), absent(2))), 0, 1, 2)
    assert scene.tick(10.9) == []
    scene.push(0, now=10.9)
    assert scene.tick(11.0) == to_all(Waiting(0, 0, 1.0, 1, (absent(2),)), 0, 1, 2)


def test_an_epoch_that_does_not_start_names_ranks_without_hello():
    scene = Scene(3)
    scene.hello(1, now=10.0)
    assert scene.tick(10.4) == []
    assert scene.tick(10.5) == to_all(Waiting(0, 0, 0.5, 2, (absent(0), absent(2)), epoch=1), 0, 1, 2)
    scene.hello(0, now=10.6)
    assert scene.tick(11.0)[0] == Send(0, Waiting(0, 0, 1.0, 1, (absent(2),), epoch=1))
    scene.hello(2, now=11.1)
    assert scene.tick(20.0) == []


def test_the_report_is_about_the_oldest_chunk_and_ends_with_it():
    scene = running()
    scene.push(0, 0, now=1.0)
    scene.push(0, 1, now=2.0)
    assert scene.tick(2.6)[0].frame.seq == 0
    scene.push(1, 0, now=2.7)
    assert scene.tick(3.2)[0] == Send(0, Waiting(1, 0, pytest.approx(1.2), 1, (absent(1),)))
    scene.push(1, 1, now=3.3)
    assert scene.tick(9.0) == []


def test_a_rank_that_is_lost_is_named_as_lost():
    scene = running()
    scene.push(0, now=0.0)
    scene.lose(1, 0.1)
    (news,) = scene.tick(1.0)
    assert news == Send(0, Waiting(0, 0, 1.0, 1, (absent(1, Presence.LOST),)))
    assert str(news.frame) == "rank 1 (h1, lost)"


def test_eight_missing_ranks_are_named_and_the_rest_counted():
    scene = running(12)
    scene.push(0, now=0.0)
    actions = scene.tick(6.0)
    news = actions[0].frame
    assert (news.count, [peer.rank for peer in news.missing]) == (11, list(range(1, 9)))
    assert str(news).endswith("rank 8 (h8) and 3 more")
    (text,) = warnings(actions)
    assert text.startswith("job=job rank=1,2,3,4,5,6,7,8,... collective 0 ")
    assert text.endswith("rank 8 (h8) and 3 more")


def test_the_operator_is_warned_once_for_each_collective():
    scene = running()
    scene.push(0, now=0.0)
    scene.push(0, 1, now=0.0)
    assert warnings(scene.tick(4.9)) == []
    assert warnings(scene.tick(5.4)) == [
        f"job=job rank=1 collective 0 ({SUM}) has waited 5 s for rank 1 (h1)"
    ]
    assert warnings(scene.tick(9.0)) == []
    scene.push(1, now=9.0)
    (text,) = warnings(scene.tick(9.6))
    assert text.startswith(f"job=job rank=1 collective 1 ({SUM}) has waited 10 s")


def test_the_operator_is_warned_once_about_an_epoch():
    scene = Scene(2)
    scene.hello(0, now=0.0)
    texts = [text for now in range(20) for text in warnings(scene.tick(float(now)))]
    assert texts == ["job=job rank=1 epoch 1 has waited 5 s for rank 1 (h1)"]


def test_the_last_rank_is_counted_with_the_time_when_it_alone_was_missing():
    scene = running(3)
    for rank, now in [(2, 1.0), (0, 1.5), (1, 3.0)]:
        scene.push(rank, now=now)
    totals = scene.job.totals
    assert [(one.rank, one.chunks, one.waited_s) for one in scene.job.waits.last()] == [(1, 1, 2.0)]
    assert totals.straggler_s == {1: 1.5}
    assert (sum(totals.chunk_waits.counts), totals.chunk_waits.sum_s) == (1, 2.0)


def test_a_wait_shows_while_it_lasts_and_ends_with_the_epoch():
    scene = running()
    scene.push(0, now=1.0)
    scene.tick(1.4)
    assert scene.job.totals.straggler_s == {1: pytest.approx(0.4)}
    scene.hello(0, epoch=2, now=1.5)
    scene.tick(9.0)
    assert scene.job.totals.straggler_s == {1: pytest.approx(0.4)}
    assert scene.job.totals.epochs == 2


def test_nobody_waits_in_a_job_with_one_rank():
    scene = running(1)
    scene.push(0, now=1.0)
    totals = scene.job.totals
    assert (totals.straggler_s, sum(totals.chunk_waits.counts)) == ({}, 1)

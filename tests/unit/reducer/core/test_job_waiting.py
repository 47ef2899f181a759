"""What a job tells of ranks that others wait for."""

import pytest
from reduction.model import Hello, Peer, Presence, Waiting
from unit.reducer.core.test_job import SUM, Scene, configuration, running

from reducer.core.actions import Send, Warn
from reducer.core.events import Lost, Tick


def tick(scene, now):
    return scene.jobs.handle(Tick(), now)


def absent(rank, presence=Presence.PRESENT):
    return Peer(rank, bytes([rank]) * 16, f"h{rank}", presence)


def test_nobody_hears_of_a_chunk_that_has_not_waited_long():
    scene = running(3)
    scene.push(0, now=10.0)
    assert tick(scene, 10.4) == []


def test_all_ranks_hear_for_whom_a_chunk_waits_and_again():
    scene = running(3)
    scene.push(1, now=10.0)
    assert tick(scene, 10.5) == [
        Send(rank, Waiting(0, 0, 0.5, 2, (absent(0), absent(2)))) for rank in range(3)
    ]
    assert tick(scene, 10.9) == []
    scene.push(0, now=10.9)
    assert tick(scene, 11.0) == [Send(rank, Waiting(0, 0, 1.0, 1, (absent(2),))) for rank in range(3)]


def test_the_news_is_of_the_oldest_chunk_and_ends_with_it():
    scene = running()
    scene.push(0, 0, now=1.0)
    scene.push(0, 1, now=2.0)
    assert tick(scene, 2.6)[0].frame.seq == 0
    scene.push(1, 0, now=2.7)
    assert tick(scene, 3.2)[0] == Send(0, Waiting(1, 0, pytest.approx(1.2), 1, (absent(1),)))
    scene.push(1, 1, now=3.3)
    assert tick(scene, 9.0) == []


def test_a_rank_that_is_lost_is_named_as_lost():
    scene = running()
    scene.push(0, now=0.0)
    scene.jobs.handle(Lost(1), 0.1)
    (news,) = tick(scene, 1.0)
    assert news == Send(0, Waiting(0, 0, 1.0, 1, (absent(1, Presence.LOST),)))
    assert str(news.frame) == "rank 1 (h1, lost)"


def test_eight_are_named_and_the_others_counted():
    scene = Scene(12)
    scene.start()
    scene.push(0, now=0.0)
    news = tick(scene, 1.0)[0].frame
    assert (news.count, [peer.rank for peer in news.missing]) == (11, list(range(1, 9)))
    assert str(news).endswith("rank 8 (h8) and 3 more")


def test_the_operator_is_warned_once_for_each_collective():
    scene = running()
    scene.push(0, now=0.0)
    scene.push(0, 1, now=0.0)
    assert [action for action in tick(scene, 4.9) if isinstance(action, Warn)] == []
    text = f"job=job rank=1 collective 0 ({SUM}) has waited 5 s for rank 1 (h1)"
    assert tick(scene, 5.4)[-1] == Warn(text)
    assert [action for action in tick(scene, 9.0) if isinstance(action, Warn)] == []
    scene.push(1, now=9.0)
    assert tick(scene, 9.6)[-1].text.startswith(f"job=job rank=1 collective 1 ({SUM}) has waited 10 s")


def test_the_operator_hears_of_a_few_of_many_ranks():
    scene = running(12)
    scene.push(0, now=0.0)
    text = tick(scene, 6.0)[-1].text
    assert text.startswith("job=job rank=1,2,3,4,5,6,7,8,... collective 0 ")
    assert text.endswith("rank 8 (h8) and 3 more")


def test_who_was_last_is_counted():
    scene = running(3)
    for rank, now in [(2, 1.0), (0, 1.5), (1, 3.0)]:
        scene.push(rank, now=now)
    (job,) = scene.jobs.by_name.values()
    assert [(one.rank, one.chunks, one.waited_s) for one in job.stragglers.last()] == [(1, 1, 2.0)]


def test_the_time_counts_in_which_one_rank_alone_was_missing():
    scene = running(3)
    for rank, now in [(2, 1.0), (0, 1.5), (1, 3.0)]:
        scene.push(rank, now=now)
    (job,) = scene.jobs.by_name.values()
    assert job.totals.straggler_s == {1: 1.5}
    assert (sum(job.totals.chunk_waits.counts), job.totals.chunk_waits.sum_s) == (1, 2.0)


def test_a_wait_shows_while_it_lasts_and_ends_with_the_epoch():
    scene = running(2)
    scene.push(0, now=1.0)
    tick(scene, 1.4)
    (job,) = scene.jobs.by_name.values()
    assert job.totals.straggler_s == {1: pytest.approx(0.4)}
    scene.receive(0, Hello(configuration(2), 0), now=1.5)
    tick(scene, 9.0)
    assert job.totals.straggler_s == {1: pytest.approx(0.4)}
    assert job.totals.epochs == 2


def test_nobody_waits_in_a_job_with_one_rank():
    scene = running(1)
    scene.push(0, now=1.0)
    (job,) = scene.jobs.by_name.values()
    assert (job.totals.straggler_s, sum(job.totals.chunk_waits.counts)) == ({}, 1)


def test_an_epoch_that_does_not_start_names_who_said_no_hello():
    scene = Scene(3)
    scene.receive(1, Hello(configuration(), 0), now=10.0)
    assert tick(scene, 10.4) == []
    assert tick(scene, 10.5) == [
        Send(rank, Waiting(0, 0, 0.5, 2, (absent(0), absent(2)), epoch=1)) for rank in range(3)
    ]
    scene.receive(0, Hello(configuration(), 0), now=10.6)
    assert tick(scene, 11.0)[0] == Send(0, Waiting(0, 0, 1.0, 1, (absent(2),), epoch=1))
    scene.receive(2, Hello(configuration(), 0), now=11.1)
    assert tick(scene, 20.0) == []


def test_the_operator_hears_of_an_epoch_once():
    scene = Scene(2)
    scene.receive(0, Hello(configuration(), 0), now=0.0)
    texts = [
        action.text for now in range(20) for action in tick(scene, float(now)) if isinstance(action, Warn)
    ]
    assert texts == ["job=job rank=1 epoch 1 has waited 5 s for rank 1 (h1)"]

"""A reducer's part in pacing: it sends at the lowest rate of all ranks and its own, and reports that rate to all."""

import pytest
from reduction.model import LinkRate, Place
from reduction.pacing import BACK_OFF, UNPACED, Sent
from support.scenes.jobs_scene import join, make_jobs, receive, running

from reducer.core.actions import Send, Throttle
from reducer.core.events import Lost, Tick

TICK_S = 0.04
STREAMS = 10, 11


@pytest.fixture
def jobs():
    jobs = make_jobs()
    running(jobs)
    return jobs


def paced(actions):
    return {action.stream: action.bytes_per_s for action in actions if isinstance(action, Throttle)}


def told(actions):
    return {
        action.stream: action.frame.bytes_per_s
        for action in actions
        if isinstance(action, Send) and isinstance(action.frame, LinkRate)
    }


def test_without_losses_nothing_is_paced_or_reported(jobs):
    actions = jobs.handle(Tick({10: Sent(), 11: Sent()}), 1.0)
    actions += jobs.handle(Tick({10: Sent(10**6, 10**3), 11: Sent(10**6, 10**3)}), 1.0 + TICK_S)
    assert actions == []


def test_its_own_losses_slow_down_results_and_all_ranks_are_notified(jobs):
    jobs.handle(Tick({10: Sent(), 11: Sent()}), 1.0)
    after = {10: Sent(2 * 10**6, 2000, 100), 11: Sent(2 * 10**6, 2000)}
    actions = jobs.handle(Tick(after), 1.0 + TICK_S)
    rate = int(BACK_OFF * 2 * 10**6 / TICK_S)
    assert told(actions) == pytest.approx({10: rate, 11: rate}, abs=1)
    assert paced(actions) == pytest.approx({10: rate, 11: rate}, abs=1)
    job = next(iter(jobs.by_name.values()))
    own = job.pacing.own
    for sent in ({}, {99: Sent()}):  # only other jobs send
        assert told(jobs.handle(Tick(sent), 1.1)) == {}
    assert job.pacing.own == own


def test_a_stream_is_no_longer_paced_once_no_limit_is_known(jobs):
    receive(jobs, 11, LinkRate(20_000_000))
    jobs.handle(Tick(), 1.0)
    receive(jobs, 11, LinkRate(0))
    assert paced(jobs.handle(Tick(), 1.1)) == dict.fromkeys(STREAMS, UNPACED)
    assert paced(jobs.handle(Tick(), 1.2)) == {}


def test_the_slowest_rank_decides_for_all(jobs):
    receive(jobs, 10, LinkRate(30_000_000))
    receive(jobs, 11, LinkRate(20_000_000))
    actions = jobs.handle(Tick(), 1.0)
    assert told(actions) == paced(actions) == {10: 20_000_000, 11: 20_000_000}
    receive(jobs, 11, LinkRate(0))
    assert told(jobs.handle(Tick(), 1.1)) == {10: 30_000_000, 11: 30_000_000}


def test_a_rank_that_is_gone_does_not_slow_down_the_others(jobs):
    receive(jobs, 11, LinkRate(20_000_000))
    assert told(jobs.handle(Tick(), 1.0)) == {10: 20_000_000, 11: 20_000_000}
    jobs.handle(Lost(11), 1.1)
    assert told(jobs.handle(Tick(), 1.2)) == {10: 0}
    receive(jobs, 12, join(1))
    receive(jobs, 12, LinkRate(40_000_000), 1.3)
    assert told(jobs.handle(Tick(), 1.4)) == {10: 40_000_000, 12: 40_000_000}


def test_before_the_first_epoch_no_rate_is_reported():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    receive(jobs, 10, LinkRate(20_000_000))
    assert told(jobs.handle(Tick({10: Sent()}), 1.0)) == {}


def test_streams_within_the_host_are_not_paced():
    jobs = make_jobs()
    jobs.place = Place(b"this host.......")
    running(jobs)
    job = jobs.by_name[next(iter(jobs.by_name))]
    job.place = Place(b"this host.......")
    job.ranks[0].place = job.place
    receive(jobs, 10, LinkRate(30_000_000))
    assert paced(jobs.handle(Tick(), 1.0)) == {11: 30_000_000}


def test_only_streams_of_jobs_that_have_sent_results_are_polled(jobs):
    assert jobs.sending() == []
    jobs.note_sent(10, 1000)
    assert jobs.sending() == [10, 11]
    assert jobs.sending() == []

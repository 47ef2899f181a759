"""A link: one rank's view of one reducer. Tests of dialling and its outcome are in membership/."""

from reduction.errors import ReducerAbsent, ReducerUnavailable
from reduction.model import Welcome
from support.scenes.rank_scene import incarnation, peers

from worker_plugin.core.link import Link, LinkPhase

WELCOME = Welcome(incarnation("a"), 4096)


def link_up(ranks):
    link = Link(0, "a:1")
    link.open()
    link.on_welcome(WELCOME, 3.0)
    link.see(peers(ranks), 3.0)
    return link


def test_a_reducer_is_absent_from_a_dial_that_did_not_find_it_until_another_outcome():
    link = link_up("P")
    link.down(ReducerUnavailable("reset"), 5.0)
    assert not link.is_absent
    link.open()
    link.down(ReducerAbsent("refused"), 5.0)
    link.open()
    assert link.is_absent, "the next dial has no answer yet"
    link.down(ReducerUnavailable("timeout"), 6.0)
    assert not link.is_absent
    link.down(ReducerAbsent("refused"), 7.0)
    link.on_welcome(WELCOME, 8.0)
    assert not link.is_absent


def test_an_ended_stream_leaves_only_its_reason_until_the_next_welcome():
    link = link_up("PLG")
    link.hello_epoch, link.acked, link.is_draining, link.busy_since = 3, 9, True, 2.0
    broken = ReducerUnavailable("reset")
    link.down(broken, 5.0)
    assert (link.phase, link.lane, link.peers, link.lost_since) == (LinkPhase.DOWN, None, {}, {})
    assert (link.is_draining, link.departed(), link.sees(0)) == (False, None, False)
    link.down(None, 6.0)
    assert link.error is broken
    link.on_welcome(WELCOME, 7.0)
    assert (link.is_up, link.up_since, link.error, link.busy_since) == (True, 7.0, None, None)
    assert (link.hello_epoch, link.acked) == (0, 0), "nothing was said on the new stream"


def test_see_reports_ranks_that_were_present_and_are_now_lost():
    link = link_up("PPL")
    assert link.see(peers("PLL"), 4.0) == {1}
    assert link.see(peers("PLL"), 5.0) == set()
    assert link.lost_since == {1: 4.0, 2: 3.0}, "the first report in a row counts"
    assert link.see(peers("PPG", draining=True), 6.0) == set()
    assert (link.departed().rank, link.is_draining) == (2, True)
    assert link.see(peers("LLGL"), 7.0) == {0, 1}, "rank 3 was never present here"
    assert link.lost_since == {0: 7.0, 1: 7.0, 3: 7.0}
    assert not link.is_draining


def test_it_sees_only_ranks_that_are_present_now():
    link = link_up("PLG")
    assert [link.sees(rank) for rank in range(4)] == [True, False, False, False]
    assert not link.sees_all(3)
    link.see(peers("PPP"), 4.0)
    assert link.sees_all(3)
    assert not link.sees_all(4)
    link.phase = LinkPhase.OPENING
    assert not link.sees_all(3)

"""A link: one rank's view of one reducer."""

from reduction.errors import ReducerAbsent, ReducerUnavailable
from reduction.model import Peer, Peers, Presence, Welcome

from worker_plugin.core.link import REDIAL_S, Link, LinkPhase

A, B = b"a" * 16, b"b" * 16
P, L, G = Presence.PRESENT, Presence.LOST, Presence.LEFT


def peers(*presences, draining=False):
    return Peers(
        tuple(Peer(rank, bytes([rank]) * 16, f"h{rank}", seen) for rank, seen in enumerate(presences)),
        draining,
    )


def link_up(*presences, now=0.0):
    link = Link(0, "a:1")
    link.open()
    link.on_welcome(Welcome(A, 4096), now)
    link.see(peers(*presences), now)
    return link


def test_a_new_link_dials_at_once():
    link = Link(0, "a:1")
    assert (link.phase, link.dial_at, link.is_up) == (LinkPhase.DOWN, 0.0, False)
    link.open()
    assert (link.phase, link.is_up) == (LinkPhase.OPENING, False)


def test_welcome_brings_it_up():
    link = Link(0, "a:1")
    link.open()
    link.on_welcome(Welcome(A, 4096), 3.0)
    assert (link.phase, link.is_up, link.up_since) == (LinkPhase.UP, True, 3.0)
    assert (link.incarnation, link.credit_bytes) == (A, 4096)


def test_dials_in_a_row_come_slower_and_slower_until_a_welcome():
    link = Link(0, "a:1")
    pauses = []
    for _ in range(26):
        link.open()
        link.down(None, 100.0)
        pauses.append(round(link.dial_at - 100.0, 3))
    assert pauses == [0.05, *[0.1] * 10, *[0.2] * 10, 0.4, 0.8, 1.0, 1.0, 1.0]
    link.open()
    link.on_welcome(Welcome(A, 4096), 200.0)
    link.down(None, 300.0)
    assert link.dial_at == 300.0 + REDIAL_S[0] == 300.0


def test_it_is_absent_from_a_dial_that_found_nobody_until_the_next_one_says_otherwise():
    link = link_up(P)
    link.down(ReducerUnavailable("reset"), 5.0)
    assert not link.is_absent
    link.open()
    link.down(ReducerAbsent("refused"), 5.0)
    assert link.is_absent
    link.open()
    assert link.is_absent, "the next dial has no answer yet"
    link.down(ReducerUnavailable("timeout"), 6.0)
    assert not link.is_absent
    link.down(ReducerAbsent("refused"), 7.0)
    link.open()
    link.on_welcome(Welcome(B, 4096), 8.0)
    assert not link.is_absent


def test_down_forgets_what_belonged_to_the_stream():
    link = link_up(P, L)
    link.is_draining = True
    link.down(None, 5.0)
    assert (link.phase, link.lane, link.peers, link.lost_since) == (LinkPhase.DOWN, None, {}, {})
    assert not link.is_draining


def test_the_reason_why_it_is_down_is_kept_until_a_welcome():
    link = Link(0, "a:1")
    refused, broken = ReducerUnavailable("connection refused"), ReducerUnavailable("reset")
    link.down(refused, 0.0)
    link.down(None, 1.0)
    assert link.error is refused
    link.down(broken, 2.0)
    assert link.error is broken
    link.busy_since = 2.0
    link.on_welcome(Welcome(A, 4096), 3.0)
    assert (link.error, link.busy_since) == (None, None)


def test_nothing_was_said_on_a_new_stream():
    link = link_up()
    link.hello_epoch = 3
    link.acked = 9
    link.down(None, 1.0)
    link.on_welcome(Welcome(A, 4096), 2.0)
    assert (link.hello_epoch, link.acked) == (0, 0)


def test_see_reports_who_was_present_and_is_lost_now():
    link = link_up(P, P, L)
    assert link.see(peers(P, L, L), 1.0) == {1}
    assert link.see(peers(P, L, L), 2.0) == set()
    assert link.see(peers(P, P, G), 3.0) == set()
    assert link.see(peers(L, L, G, L), 4.0) == {0, 1}, "rank 3 was never present here"


def test_lost_since_is_the_first_report_in_a_row():
    link = link_up(P, P)
    link.see(peers(P, L), 1.0)
    link.see(peers(L, L), 2.0)
    assert link.lost_since == {1: 1.0, 0: 2.0}
    link.see(peers(L, P), 3.0)
    link.see(peers(L, L), 4.0)
    assert link.lost_since == {0: 2.0, 1: 4.0}


def test_draining_is_what_the_last_report_says():
    link = link_up(P)
    link.see(peers(P, draining=True), 1.0)
    assert link.is_draining
    link.see(peers(P), 2.0)
    assert not link.is_draining


def test_sees_only_present_ranks():
    link = link_up(P, L, G)
    assert [link.sees(rank) for rank in range(4)] == [True, False, False, False]


def test_sees_all_needs_the_stream_and_every_rank():
    link = link_up(P, P)
    assert link.sees_all(2)
    assert not link.sees_all(3)
    link.phase = LinkPhase.OPENING
    assert not link.sees_all(2)


def test_has_left_names_a_rank_that_said_goodbye():
    assert link_up(P, L).has_left() is None
    assert link_up(P, G).has_left() == Peer(1, bytes([1]) * 16, "h1", G)

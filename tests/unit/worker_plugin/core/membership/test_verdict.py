"""`judge`: the table at the top of `worker_plugin.core.membership.verdict`, a view in and a verdict out."""

from dataclasses import replace

import pytest
from reduction.errors import (
    PeerLeft,
    RankTaken,
    ReducerAbsent,
    ReducerUnavailable,
    WorkerLost,
    WorkersMissing,
)
from reduction.model import Configuration, Member, Peer, Peers, Place, Presence

from worker_plugin.core.link import PATIENCE_S, Link, LinkPhase
from worker_plugin.core.membership.verdict import (
    ABSENT_S,
    GRACE_S,
    LEADER_S,
    FallBack,
    GiveUp,
    Keep,
    Reconfigure,
    View,
    judge,
)
from worker_plugin.core.words import ADVICE, missing_ranks

SEE_LOG = "; its log or its host's may say why (out of memory?)"
START_THEM = "; see whether `reducer serve` runs there, and the addresses are right"

P, L, G = Presence.PRESENT, Presence.LOST, Presence.LEFT
MARKS = {"P": P, "L": L, "G": G}


def link(name, ranks="PP", *, since=0.0, draining=False, phase=LinkPhase.UP, error=None):
    """A link to reducer `name`, which sees one rank per letter: P, L, G, or - for never seen."""
    link = Link(ord(name), f"{name}:1", phase=phase, incarnation=name.encode() * 16, error=error)
    if phase is LinkPhase.UP:
        peers = tuple(
            Peer(rank, bytes([rank]) * 16, f"h{rank}", MARKS[mark])
            for rank, mark in enumerate(ranks)
            if mark != "-"
        )
        link.see(Peers(peers, draining), since)
        link.up_since = 95.0
    return link


def down(name, error=None):
    return link(name, phase=LinkPhase.DOWN, error=error)


def reborn(name, ranks="PP"):
    new = link(name, ranks)
    new.incarnation = name.encode() * 15 + b"2"
    return new


def epoch(*names):
    members = tuple(Member(f"{name}:1", name.encode() * 16) for name in names)
    return Configuration(bytes(16), 4, 1024, members)


def view(*links, **changes):
    fields = {
        "now": 100.0,
        "rank": 0,
        "world_size": 2,
        "links": links,
        "configuration": epoch("a", "b"),
        "broken_since": None,
        "unstarted_since": None,
        "alone_since": None,
        "met_since": None,
        "started_at": 0.0,
        "is_idle": False,
        "join_timeout_s": 60.0,
        "timeout_s": 600.0,
    }
    return View(**fields | changes)


def forming(*links, **changes):
    return view(*links, **{"configuration": None, "now": 10.0} | changes)


def broken(*links, ago=0.0, **changes):
    return view(*links, **{"broken_since": 100.0 - ago} | changes)


def given_up(verdict):
    assert type(verdict) is GiveUp
    return type(verdict.error), str(verdict.error)


# ---- the first epoch ----


def test_rank_0_configures_all_reducers_once_all_ranks_are_there():
    a, b = link("a"), link("b")
    assert judge(forming(a, b)) == Reconfigure((a, b), "all ranks (2) are at all reducers")


@pytest.mark.parametrize(
    "late", [link("b", "P-"), link("b", "PL"), down("b"), link("b", phase=LinkPhase.OPENING)]
)
def test_rank_0_waits_for_the_last_one(late):
    assert judge(forming(link("a"), late)) == Keep()


def test_a_second_address_of_one_reducer_does_not_count():
    a = link("a")
    assert judge(forming(a, link("b", phase=LinkPhase.RETIRED))) == Reconfigure(
        (a,), "all ranks (2) are at all reducers"
    )


def test_other_ranks_wait_for_rank_0():
    assert judge(forming(link("a"), link("b"), rank=1)) == Keep()


def test_a_rank_that_dies_before_the_first_epoch_is_named_after_the_grace():
    links = link("a", "PL", since=9.5), link("b", "PL", since=9.0)
    assert judge(forming(*links, now=10.4)) == Keep()
    assert given_up(judge(forming(*links, now=10.5))) == (
        WorkerLost,
        "rank 1 (h1) is gone: its streams to a:1, b:1 broke without goodbye" + SEE_LOG,
    )


def test_a_job_that_goes_on_does_not_wait_for_a_reducer_that_is_not_there():
    a, absent = link("a"), down("b")
    again = {"goes_on": True, "met_since": 9.0}
    assert judge(forming(a, absent, now=9.9, **again)) == Keep()
    expected = Reconfigure(
        (a,), "not all ranks reach b:1, which will take part when they do", lacks_some=True
    )
    assert judge(forming(a, absent, now=10.0, **again)) == expected
    assert judge(forming(a, absent, now=10.0, goes_on=True)) == Keep(), "not all ranks are there"
    assert judge(forming(a, absent, now=10.0, rank=1, **again)) == Keep()
    assert judge(forming(a, absent, now=10.0, on_reducer_loss="wait", **again)) == Keep()


def test_a_rank_may_come_as_late_as_to_any_collective():
    links = link("a", "P--"), link("b", "P--")
    late = {"world_size": 3}
    assert judge(forming(*links, now=599.9, **late)) == Keep()
    assert given_up(judge(forming(*links, now=600.0, **late))) == (
        WorkersMissing,
        f"ranks 1 and 2 did not come within 600 s (timeout_s): {ADVICE}",
    )


@pytest.mark.parametrize(("rank", "who"), [(0, "rank 1"), (1, "rank 0")])
def test_a_short_timeout_is_not_made_longer_by_the_join_timeout(rank, who):
    a, short = link("a", "P-" if rank == 0 else "-P"), {"timeout_s": 4.0, "rank": rank}
    assert judge(forming(a, now=3.9, **short)) == Keep()
    error, text = given_up(judge(forming(a, now=4.0, **short)))
    assert error is WorkersMissing
    assert text == f"{who} did not come within 4 s (timeout_s): {ADVICE}"
    assert judge(forming(down("a"), now=59.9, **short)) == Keep(), "reducers have the join timeout"
    assert judge(forming(link("a"), down("b"), now=59.9, met_since=1.0, timeout_s=4.0)) == Keep()


def test_missing_ranks_are_named_up_to_a_number():
    nobody = [link("a", "P" + "-" * 40)]
    assert missing_ranks(nobody, 2) == "rank 1"
    assert missing_ranks(nobody, 9) == "ranks 1, 2, 3, 4, 5, 6, 7 and 8"
    assert missing_ranks(nobody, 41) == "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 32 more"


@pytest.mark.parametrize("absent", [down("b"), link("b", "P-")])
def test_a_reducer_that_not_all_reach_is_left_out_after_the_join_timeout(absent):
    a, met = link("a"), {"met_since": 50.0}
    assert judge(forming(a, absent, now=59.9, met_since=1.0)) == Keep()
    assert judge(forming(a, absent, now=60.0 - 0.1, **met)) == Keep(), "ranks came late, and have their time"
    assert judge(forming(a, absent, now=60.0, **met)) == Reconfigure(
        (a,), "not all ranks reach b:1, which will take part when they do", lacks_some=True
    )
    assert judge(forming(a, absent, now=60.0, met_since=None)) == Keep()
    assert judge(forming(a, absent, now=60.0, rank=1, **met)) == Keep()


@pytest.mark.parametrize("policy", ["wait", "raise"])
def test_where_all_reducers_are_wanted_it_is_an_error(policy):
    links = link("a"), down("b", ReducerUnavailable("refused")), link("c", phase=LinkPhase.RETIRED), down("d")
    assert given_up(judge(forming(*links, now=60.0, met_since=1.0, on_reducer_loss=policy))) == (
        ReducerUnavailable,
        "2 of 3 reducers could not be reached within 60 s (join_timeout_s): b:1 (refused), d:1 (no answer)"
        + START_THEM,
    )


def test_names_that_stand_for_nothing_any_more_are_an_error_too():
    gone = link("a", phase=LinkPhase.RETIRED)
    assert given_up(judge(forming(gone, now=60.0))) == (
        ReducerUnavailable,
        "there was no address of a reducer any more within 60 s (join_timeout_s); see what the names of the reducers "
        "stand for",
    )


def test_a_reducer_that_nobody_else_reaches_is_no_reducer():
    links = link("a", "P-P"), link("b", "PP-")
    assert judge(forming(*links, now=59.9, world_size=3, met_since=1.0)) == Keep()
    assert given_up(judge(forming(*links, now=60.0, world_size=3, met_since=1.0))) == (
        ReducerUnavailable,
        "no reducer was reached by all ranks within 60 s (join_timeout_s): a:1 misses ranks [1]; b:1 misses ranks [2]; "
        "see whether their hosts may connect to it",
    )


def test_another_rank_that_reaches_none_names_them_all():
    assert given_up(judge(forming(down("a"), down("b"), now=60.0, rank=1))) == (
        ReducerUnavailable,
        "2 of 2 reducers could not be reached within 60 s (join_timeout_s): a:1 (no answer), b:1 (no answer)"
        + START_THEM,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_reducer_that_was_there_is_waited_for_from_its_loss_on(rank):
    """The only one that all reach may be started again just when one that nobody reaches is to be left out."""
    alone = {"rank": rank, "alone_since": 59.0}
    assert judge(forming(down("a"), now=118.0, **alone)) == Keep()
    assert given_up(judge(forming(down("a"), now=119.0, **alone)))[0] is ReducerUnavailable


@pytest.mark.parametrize("other", [link("b"), down("b")])
def test_another_rank_that_reaches_some_waits_for_rank_0(other):
    links, missing = (link("a", "-P"), other), {"rank": 1}
    assert judge(forming(*links, now=599.9, **missing)) == Keep()
    assert given_up(judge(forming(*links, now=600.0, **missing))) == (
        WorkersMissing,
        f"rank 0 did not come within 600 s (timeout_s): {ADVICE}",
    )


def test_another_rank_gives_rank_0_time_to_say_who_is_missing():
    links = link("a"), link("b")
    late = {"rank": 1, "met_since": 100.0}
    assert judge(forming(*links, now=700.0 + LEADER_S - 0.1, **late)) == Keep()
    assert given_up(judge(forming(*links, now=700.0 + LEADER_S, **late))) == (
        WorkersMissing,
        "rank 0 did not begin within 600 s (timeout_s), because it waits for others: its log says for whom",
    )


# ---- nothing is broken ----


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_idle", [False, True])
def test_all_well(rank, is_idle):
    assert judge(view(link("a"), link("b"), rank=rank, is_idle=is_idle)) == Keep()


def test_a_draining_member_is_left_out_at_once():
    a, b = link("a", draining=True), link("b")
    assert judge(view(a, b)) == Reconfigure(
        (b,), "a:1 is draining and asks its jobs to leave", lacks_some=True
    )


def test_a_draining_member_is_replaced_by_a_spare():
    a, b, c = link("a", draining=True), link("b", draining=True), link("c")
    assert judge(view(a, b, c)) == Reconfigure(
        (c,), "a:1 is draining and asks its jobs to leave", lacks_some=True
    )


def test_with_nobody_else_a_draining_member_stays():
    assert judge(view(link("a", draining=True), link("b", draining=True))) == Keep()


def test_no_member_is_left_out_while_a_rank_is_missing_somewhere():
    assert judge(view(link("a", draining=True), link("b", "PL", since=100.0))) == Keep()


def test_a_new_reducer_is_taken_in_when_idle_or_after_a_while():
    a, b, c = link("a"), link("b"), link("c")
    with_c = Reconfigure((a, b, c), "c:1 is there and takes part from now on")
    assert judge(view(a, b, c)) == Keep()
    assert judge(view(a, b, c, is_idle=True)) == with_c
    assert judge(view(a, b, c, now=95.0 + PATIENCE_S)) == with_c


def on_rank_0s_host(link):
    """The same link, whose reducer is on rank 0's host."""
    here = Place(b"h" * 16)
    link.peers[0] = replace(link.peers[0], place=here)
    link.place = here
    return link


def test_a_new_reducer_without_a_share_is_not_taken_in():
    a, b, c = link("a"), link("b"), on_rank_0s_host(link("c"))
    a.peers, b.peers = c.peers, c.peers
    assert judge(view(a, b, c, is_idle=True)) == Keep()
    assert judge(forming(a, b, c)) == Reconfigure((a, b), "all ranks (2) are at all reducers")


def test_a_fallback_that_is_nearer_to_the_ranks_is_not_taken_in_again():
    a, own = link("a"), on_rank_0s_host(link("f"))
    own.is_fallback = True
    own.peers[1] = replace(own.peers[1], place=own.place)
    a.peers = own.peers
    assert judge(view(a, own, configuration=epoch("a"), is_idle=True)) == Keep()


def test_one_that_stands_by_takes_over_when_a_member_is_lost():
    a, b, c = link("a"), down("b", ReducerAbsent("b:1: refused")), on_rank_0s_host(link("c"))
    a.peers = c.peers
    b.is_absent = True
    assert judge(broken(a, b, c)) == Reconfigure((a, c), "lost b:1", lacks_some=True)


@pytest.mark.parametrize("spare", [link("c", "P-"), link("c", draining=True), down("c")])
def test_a_new_reducer_must_be_whole_and_willing(spare):
    assert judge(view(link("a"), link("b"), spare, is_idle=True)) == Keep()


# ---- a stream broke ----


def test_all_are_there_again():
    a, b = link("a"), link("b")
    assert judge(broken(a, b)) == Reconfigure((a, b), "a stream broke, and all are there again")


@pytest.mark.parametrize("hurt", [down("b"), link("b", "PL", since=100.0)])
def test_a_member_may_come_back_within_the_grace(hurt):
    a = link("a")
    assert judge(broken(a, hurt, ago=GRACE_S - 0.1)) == Keep()
    assert judge(broken(a, hurt, ago=GRACE_S)) == Reconfigure((a,), "lost b:1", lacks_some=True)


def test_a_member_whose_address_has_another_process_now_is_gone_at_once():
    a, reborn = link("a"), link("b", "P-")
    reborn.incarnation = b"another process."
    assert judge(broken(a, reborn)) == Reconfigure((a,), "lost b:1", lacks_some=True)


def test_the_new_process_of_a_lost_member_takes_part_at_once():
    a, b = link("a"), reborn("b")
    assert judge(broken(a, b)) == Reconfigure((a, b), "b:1 started again")
    assert judge(broken(down("a"), b, ago=GRACE_S)) == Reconfigure((b,), "lost a:1, b:1", lacks_some=True)


@pytest.mark.parametrize("phase", [LinkPhase.DOWN, LinkPhase.OPENING])
def test_a_member_whose_address_nobody_listens_on_is_gone_at_once(phase):
    a, b = link("a"), link("b", phase=phase)
    b.is_absent = True
    assert judge(broken(a, b)) == Reconfigure((a,), "lost b:1", lacks_some=True)
    assert judge(broken(a, b, down("c"), configuration=epoch("a", "b", "c"))) == Keep(), "c may come back"
    assert judge(broken(link("a", "PL", since=100.0), b)) == Keep(), (
        "a is not lost: rank 1 may come back to it"
    )


def test_with_no_member_left_a_spare_takes_over():
    c = link("c")
    assert judge(broken(down("a"), down("b"), c, ago=GRACE_S)) == Reconfigure(
        (c,), "lost a:1, b:1", lacks_some=True
    )


def test_with_nobody_at_all_rank_0_waits_for_the_join_timeout():
    alone = {"ago": GRACE_S, "alone_since": 99.0}
    assert judge(broken(down("a"), down("b"), **alone)) == Keep()
    assert given_up(judge(broken(down("a"), down("b"), **alone | {"now": 159.0}))) == (
        ReducerUnavailable,
        "2 of 2 reducers could not be reached within 60 s (join_timeout_s): a:1 (no answer), b:1 (no answer)"
        + START_THEM,
    )


def test_with_nothing_in_flight_nobody_has_to_give_up():
    assert judge(broken(down("a"), down("b"), alone_since=0.0, is_idle=True)) == Keep()


def test_other_ranks_wait_for_rank_0s_epoch_as_long_as_for_a_collective():
    links = link("a"), link("b")
    late = {"rank": 1, "met_since": 0.0, "now": 700.0}
    assert judge(view(*links, broken_since=98.1, **late)) == Keep()
    assert given_up(judge(view(*links, broken_since=98.0, **late)))[0] is WorkersMissing
    assert judge(view(*links, broken_since=98.0, is_idle=True, **late)) == Keep()


def test_ranks_that_have_not_come_back_to_a_new_reducer_are_waited_for():
    """They may be busy: the only reducer was started again, and one rank holds the GIL."""
    a = reborn("a", "P-")
    late = {"configuration": epoch("a"), "broken_since": 0.0}
    assert judge(view(a, now=599.9, **late)) == Keep()
    assert given_up(judge(view(a, now=600.0, **late))) == (
        WorkersMissing,
        f"rank 1 did not come within 600 s (timeout_s): {ADVICE}",
    )


def test_reducers_of_which_each_misses_another_rank_are_given_up_as_ever():
    links = reborn("a", "P-P"), reborn("b", "PP-")
    apart = {"configuration": epoch("a", "b"), "broken_since": 40.0, "world_size": 3, "met_since": 41.0}
    assert judge(view(*links, now=99.9, **apart)) == Keep()
    assert given_up(judge(view(*links, now=100.0, **apart)))[0] is ReducerUnavailable


# ---- ranks that are gone ----


def test_a_rank_gone_at_every_live_reducer_is_dead():
    links = link("a", "PL", since=99.0), link("b", "PL", since=98.0), down("c")
    assert given_up(judge(broken(*links, ago=GRACE_S))) == (
        WorkerLost,
        "rank 1 (h1) is gone: its streams to a:1, b:1 broke without goodbye" + SEE_LOG,
    )


def test_nobody_waits_for_a_rank_whose_process_has_ended_once_all_reducers_have_lost_it():
    a, b = link("a", "PL", since=100.0), link("b", "PP")
    a.peers[1] = replace(a.peers[1], has_ended=True)
    assert judge(broken(a, b, ago=0.0)) == Keep()
    b = link("b", "PL", since=100.0)
    assert given_up(judge(broken(a, b, ago=0.0)))[0] is WorkerLost


def test_other_ranks_only_judge_rank_0():
    gone = link("a", "LL", since=99.0), link("b", "LL", since=99.0)
    assert given_up(judge(view(*gone, rank=1))) == (
        WorkerLost,
        "rank 0 (h0) is gone: its streams to a:1, b:1 broke without goodbye" + SEE_LOG,
    )
    assert judge(view(link("a", "PPL"), link("b", "PPL"), rank=1, world_size=3)) == Keep()


def test_a_rank_that_one_reducer_lost_and_a_new_one_never_saw_is_absent_for_longer():
    a, b = link("a", "P-"), link("b", "PL", since=90.0)
    a.up_since = 100.0 - ABSENT_S + 1
    assert judge(broken(a, b, ago=5.0)) == Keep()
    a.up_since = 100.0 - ABSENT_S
    assert given_up(judge(broken(a, b, ago=5.0))) == (
        WorkerLost,
        "rank 1 (h1) is gone: its streams to a:1, b:1 broke without goodbye" + SEE_LOG,
    )


def test_a_rank_that_no_reducer_has_lost_is_not_dead():
    a = link("a", "P-")
    a.up_since = 0.0
    assert judge(broken(a, down("b"), ago=50.0)) == Keep()


def test_a_rank_that_left_fails_those_that_wait_for_results():
    links = link("a", "PG"), link("b", "PG")
    assert judge(broken(*links, ago=GRACE_S - 0.1)) == Keep()
    assert judge(broken(*links, ago=GRACE_S, is_idle=True)) == Keep()
    assert given_up(judge(broken(*links, ago=GRACE_S))) == (
        PeerLeft,
        "rank 1 (h1) closed while this rank waits for results: see rank 1's log",
    )


def test_two_processes_that_claim_one_rank_at_different_reducers():
    a, b = link("a"), link("b")
    b.peers[1] = Peer(1, b"another process!", "h9", P)
    assert given_up(judge(broken(a, b))) == (
        RankTaken,
        "two processes claim rank 1, one of them on h9: give each its own rank, or each job its own name",
    )


# ---- policies ----


def test_wait_for_a_reducer_that_is_lost():
    waiting = {"ago": 59.0, "on_reducer_loss": "wait"}
    a = link("a")
    assert judge(broken(a, down("b"), link("c"), **waiting)) == Keep()
    assert judge(broken(a, reborn("b", "P-"), **waiting)) == Keep()
    b, c = reborn("b"), link("c")
    assert judge(broken(b, a, c, **waiting)) == Reconfigure((a, b, c), "all reducers are there again")
    both = reborn("a"), b
    assert judge(broken(*both, **waiting)) == Reconfigure(both, "all reducers are there again")


def test_wait_for_processes_that_come_back_at_other_ports():
    """A reducer's further processes choose their ports again at each start; its first one does not."""
    a, b = reborn("a"), link("b")
    one, two = (
        replace(link(name), address=address, parent=ord("a"))
        for name, address in [("x", "a:71"), ("y", "a:72")]
    )
    members = tuple(Member(address, address.encode().ljust(16)) for address in ("a:1", "a:51", "a:52", "b:1"))
    waiting = {
        "ago": 5.0,
        "on_reducer_loss": "wait",
        "configuration": Configuration(bytes(16), 4, 1024, members),
    }
    assert judge(broken(b, a, one, **waiting)) == Keep()
    assert judge(broken(b, down("a"), one, two, **waiting)) == Keep()
    there = (b, a, one, two)
    assert judge(broken(*there, **waiting)) == Reconfigure(there, "all reducers are there again")


def test_wait_for_as_many_reducers_as_before_where_their_names_stand_for_others():
    """A pod that was started again has another address."""
    waiting = {"on_reducer_loss": "wait", "met_since": 0.0}
    b, given_up_a = link("b"), link("a", phase=LinkPhase.RETIRED)
    assert judge(broken(given_up_a, b, ago=59.0, **waiting)) == Keep()
    assert judge(broken(given_up_a, b, link("c", "P-"), ago=59.0, **waiting)) == Keep()
    c = link("c")
    found = Reconfigure((b, c), "all reducers are there again")
    assert judge(broken(given_up_a, b, c, ago=59.0, **waiting)) == found
    assert given_up(judge(broken(given_up_a, b, ago=60.0, **waiting))) == (
        ReducerUnavailable,
        "no reducer has taken the place of a:1 within 60 s (join_timeout_s)" + START_THEM,
    )


def test_wait_no_longer_than_the_join_timeout():
    waiting = {"ago": 60.0, "on_reducer_loss": "wait", "met_since": 0.0}
    assert given_up(judge(broken(link("a"), down("b"), **waiting))) == (
        ReducerUnavailable,
        "1 of 2 reducers could not be reached within 60 s (join_timeout_s): b:1 (no answer)" + START_THEM,
    )


LOST_B = (
    ReducerUnavailable,
    "lost b:1, and on_reducer_loss is 'raise': start again from a checkpoint, or choose 'reshard'",
)


def test_raise_when_a_reducer_is_lost():
    a, b = link("a"), down("b")
    assert judge(broken(a, b, ago=GRACE_S - 0.1, on_reducer_loss="raise")) == Keep()
    assert given_up(judge(broken(a, b, ago=GRACE_S, on_reducer_loss="raise"))) == LOST_B


def test_raise_at_once_when_a_reducer_has_another_life():
    assert given_up(judge(broken(link("a"), reborn("b"), on_reducer_loss="raise"))) == LOST_B


def test_a_stream_that_is_dialled_again_is_no_loss():
    a, b = link("a"), link("b")
    again = Reconfigure((a, b), "a stream broke, and all are there again")
    assert judge(broken(a, b, on_reducer_loss="raise")) == again


def test_a_rank_that_one_reducer_misses_first_is_not_taken_for_the_loss_of_that_reducer():
    a, b = link("a"), link("b", "PL", since=95.0)
    assert judge(broken(a, b, ago=5.0, on_reducer_loss="raise")) == Keep()
    assert given_up(judge(broken(a, b, ago=ABSENT_S, on_reducer_loss="raise"))) == LOST_B
    gone = link("a", "PL", since=99.0), link("b", "PL", since=90.0)
    assert given_up(judge(broken(*gone, ago=ABSENT_S, on_reducer_loss="raise")))[0] is WorkerLost


# ---- the fallback ----


def test_once_no_reducer_is_left_there_may_be_one_of_our_own():
    alone = broken(down("a"), down("b"), ago=60.0, alone_since=40.0, may_fall_back=True)
    text = (
        "2 of 2 reducers could not be reached within 60 s (join_timeout_s): a:1 (no answer), b:1 (no answer)"
    )
    assert judge(alone) == FallBack(text)
    assert judge(forming(down("a"), now=60.0, may_fall_back=True)) == FallBack(
        "1 of 1 reducers could not be reached within 60 s (join_timeout_s): a:1 (no answer)"
    )


def test_as_long_as_one_is_left_there_is_none():
    links = link("a", "P-"), down("b")
    assert judge(broken(*links, ago=60.0, may_fall_back=True)) == Keep()
    assert judge(forming(*links, now=60.0, may_fall_back=True)) == Keep()


def fallback(ranks="PP"):
    own = link("f", ranks)
    own.is_fallback = True
    return own


def test_the_first_epoch_may_begin_with_the_fallback_alone():
    own = fallback()
    assert judge(forming(down("a"), own, has_fallen_back=True)) == Reconfigure(
        (own,), "all ranks (2) are at all reducers"
    )
    assert judge(forming(down("a"), down("f"), has_fallen_back=True)) == Keep()


def test_the_fallback_is_left_out_once_another_is_back():
    own, a = fallback(), link("a")
    members = {"configuration": epoch("f")}
    assert judge(view(own, down("a"), **members)) == Keep()
    assert judge(view(own, link("a", "P-"), **members)) == Keep()
    assert judge(view(own, a, **members)) == Reconfigure((a,), "the fallback is not needed any more")

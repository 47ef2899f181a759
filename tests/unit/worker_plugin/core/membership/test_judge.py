"""`judge`: the table at the top of `worker_plugin.core.membership.judge`, a view in and a verdict out."""

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
from reduction.model import Configuration, Member, Peer, Place
from support.scenes.rank_scene import incarnation, peers

from worker_plugin.core.link import PATIENCE_S, Link, LinkPhase
from worker_plugin.core.membership.judge import (
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

ALL_ARE_THERE = "all ranks (2) have joined all reducers"
ALL_ARE_BACK = "a stream broke, and all have reconnected"
ALL_REDUCERS_ARE_BACK = "all reducers are back"
A_DRAINS = "a:1 is draining and asks its jobs to leave"
NOT_ALL_REACH_B = "not all ranks can reach b:1, which will take part once they can"


def link(name, ranks="PP", *, since=0.0, draining=False, phase=LinkPhase.UP, error=None, **changes):
    """Return a link to reducer `name`, which sees one rank per letter: P, L, G, or - for never seen."""
    link = Link(
        ord(name), f"{name}:1", **{"phase": phase, "incarnation": incarnation(name), "error": error} | changes
    )
    if phase is LinkPhase.UP:
        link.see(peers(ranks, draining=draining), since)
        link.up_since = changes.get("up_since", 95.0)
    return link


def down(name, error=None, **changes):
    return link(name, phase=LinkPhase.DOWN, error=error, **changes)


def retired(name):
    return link(name, phase=LinkPhase.RETIRED)


def reborn(name, ranks="PP"):
    return link(name, ranks, incarnation=name.encode() * 15 + b"2")


A, B, C = link("a"), link("b"), link("c")


def epoch(*names):
    return Configuration(bytes(16), 4, 1024, tuple(Member(f"{name}:1", incarnation(name)) for name in names))


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


def check(seen, expected):
    """Assert the verdict. An error's verdict is its type and words of its text."""
    verdict = judge(seen)
    if isinstance(expected, tuple):
        kind, *named = expected
        assert type(verdict) is GiveUp
        assert type(verdict.error) is kind
        assert [one for one in named if one not in str(verdict.error)] == []
    else:
        assert verdict == expected


def until(end, seen, expected):
    """Assert that nothing is decided before this time, and the decision at this time."""
    check(replace(seen, now=end - 0.1), Keep())
    check(replace(seen, now=end), expected)


def without_b(text="lost b:1"):
    return Reconfigure((A,), text, lacks_some=True)


# ---- the first epoch ----


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (forming(A, B), Reconfigure((A, B), ALL_ARE_THERE)),
        (forming(A, B, rank=1), Keep()),
        (forming(A, link("b", "P-")), Keep()),
        (forming(A, link("b", "PL")), Keep()),
        (forming(A, down("b")), Keep()),
        (forming(A, link("b", phase=LinkPhase.OPENING)), Keep()),
        # A second address of one reducer does not count.
        (forming(A, retired("b")), Reconfigure((A,), ALL_ARE_THERE)),
    ],
)
def test_rank_0_configures_all_reducers_once_all_ranks_are_there(seen, expected):
    check(seen, expected)


def test_a_rank_that_dies_before_the_first_epoch_is_named_after_the_grace():
    links = link("a", "PL", since=9.5), link("b", "PL", since=9.0)
    until(10.5, forming(*links), (WorkerLost, "rank 1 (h1)", "a:1, b:1", "out of memory?"))


def test_a_continuing_job_does_not_wait_for_an_absent_reducer():
    absent, again = down("b"), {"goes_on": True, "met_since": 9.0}
    until(10.0, forming(A, absent, **again), without_b(NOT_ALL_REACH_B))
    for changes in ({"met_since": None}, {"rank": 1}, {"on_reducer_loss": "wait"}):
        check(forming(A, absent, **again | changes), Keep())


def test_a_rank_may_join_as_late_as_for_any_collective():
    links = link("a", "P--"), link("b", "P--")
    missing = (WorkersMissing, "ranks 1 and 2 did not join", "600 s (timeout_s)", ADVICE)
    until(600.0, forming(*links, world_size=3), missing)


@pytest.mark.parametrize(("rank", "who"), [(0, "rank 1"), (1, "rank 0")])
def test_a_short_timeout_is_not_extended_by_the_join_timeout(rank, who):
    a, short = link("a", "P-" if rank == 0 else "-P"), {"timeout_s": 4.0, "rank": rank}
    until(4.0, forming(a, **short), (WorkersMissing, f"{who} did not join", "4 s (timeout_s)", ADVICE))
    check(forming(down("a"), now=59.9, **short), Keep())
    check(forming(A, down("b"), now=59.9, met_since=1.0, timeout_s=4.0), Keep())


def test_missing_ranks_are_named_up_to_a_limit():
    nobody = [link("a", "P" + "-" * 40)]
    assert missing_ranks(nobody, 2) == "rank 1"
    assert missing_ranks(nobody, 9) == "ranks 1, 2, 3, 4, 5, 6, 7 and 8"
    assert missing_ranks(nobody, 41) == "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 32 more"


@pytest.mark.parametrize("absent", [down("b"), link("b", "P-")])
def test_a_reducer_that_not_all_reach_is_left_out_after_the_join_timeout(absent):
    until(60.0, forming(A, absent, met_since=1.0), without_b(NOT_ALL_REACH_B))
    # Ranks that came late get their full time.
    until(60.0, forming(A, absent, met_since=50.0), without_b(NOT_ALL_REACH_B))
    for changes in ({}, {"rank": 1, "met_since": 50.0}):
        check(forming(A, absent, now=60.0, **changes), Keep())


@pytest.mark.parametrize("policy", ["wait", "raise"])
def test_a_missing_reducer_is_an_error_if_all_are_required(policy):
    links = A, down("b", ReducerUnavailable("refused")), retired("c"), down("d")
    check(
        forming(*links, now=60.0, met_since=1.0, on_reducer_loss=policy),
        (ReducerUnavailable, "2 of 3", "60 s (join_timeout_s)", "b:1 (refused), d:1 (no answer)"),
    )


def test_names_that_no_longer_resolve_are_an_error_too():
    check(
        forming(retired("a"), now=60.0),
        (ReducerUnavailable, "no more addresses of reducers", "60 s (join_timeout_s)"),
    )


def test_reducers_that_each_miss_a_rank_are_an_error():
    links = link("a", "P-P"), link("b", "PP-")
    expected = (
        ReducerUnavailable,
        "60 s (join_timeout_s)",
        "a:1 is missing ranks [1]; b:1 is missing ranks [2]",
    )
    until(60.0, forming(*links, world_size=3, met_since=1.0), expected)


def test_other_ranks_that_reach_no_reducer_name_them_all():
    expected = ReducerUnavailable, "2 of 2", "60 s (join_timeout_s)", "a:1 (no answer), b:1 (no answer)"
    check(forming(down("a"), down("b"), now=60.0, rank=1), expected)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_wait_for_a_lost_reducer_begins_at_its_loss(rank):
    """The only reducer that all ranks reach may be restarting just when an unreachable one is to be left out."""
    until(119.0, forming(down("a"), rank=rank, alone_since=59.0), (ReducerUnavailable, "1 of 1"))


def test_other_ranks_that_reach_some_reducer_wait_for_rank_0():
    expected = WorkersMissing, "rank 0 did not join", "600 s (timeout_s)", ADVICE
    for other in (B, down("b")):
        until(600.0, forming(link("a", "-P"), other, rank=1), expected)
    # Rank 0 has time to report who is missing.
    expected = WorkersMissing, "rank 0 did not begin", "600 s (timeout_s)", "its log names them"
    until(700.0 + LEADER_S, forming(A, B, rank=1, met_since=100.0), expected)


# ---- nothing is broken ----


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_idle", [False, True])
def test_no_change_if_healthy(rank, is_idle):
    check(view(A, B, rank=rank, is_idle=is_idle), Keep())


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ((link("a", draining=True), B), Reconfigure((B,), A_DRAINS, lacks_some=True)),
        (
            (link("a", draining=True), link("b", draining=True), C),
            Reconfigure((C,), A_DRAINS, lacks_some=True),
        ),
        ((link("a", draining=True), link("b", draining=True)), Keep()),
        # A rank is missing somewhere.
        ((link("a", draining=True), link("b", "PL", since=100.0)), Keep()),
    ],
)
def test_a_draining_member_is_left_out_at_once_if_another_can_take_over(links, expected):
    check(view(*links), expected)


def test_a_new_reducer_is_added_when_idle_or_after_a_while():
    with_c = Reconfigure((A, B, C), "c:1 is available and takes part from now on")
    check(view(A, B, C, is_idle=True), with_c)
    until(95.0 + PATIENCE_S, view(A, B, C), with_c)
    for spare in (link("c", "P-"), link("c", draining=True), down("c")):
        check(view(A, B, spare, is_idle=True), Keep())


def on_rank_0s_host(link):
    """Return the same link with its reducer on rank 0's host."""
    here = Place(b"h" * 16)
    link.peers[0] = replace(link.peers[0], place=here)
    link.place = here
    return link


def test_a_new_reducer_without_a_share_is_not_added():
    a, b, c = link("a"), link("b"), on_rank_0s_host(link("c"))
    a.peers, b.peers = c.peers, c.peers
    check(view(a, b, c, is_idle=True), Keep())
    check(forming(a, b, c), Reconfigure((a, b), ALL_ARE_THERE))


def test_a_fallback_that_is_nearer_to_the_ranks_is_not_added_again():
    a, own = link("a"), on_rank_0s_host(link("f", is_fallback=True))
    own.peers[1] = replace(own.peers[1], place=own.place)
    a.peers = own.peers
    check(view(a, own, configuration=epoch("a"), is_idle=True), Keep())


def test_a_standby_reducer_takes_over_when_a_member_is_lost():
    a, c = link("a"), on_rank_0s_host(link("c"))
    b = down("b", ReducerAbsent("b:1: refused"), is_absent=True)
    a.peers = c.peers
    check(broken(a, b, c), Reconfigure((a, c), "lost b:1", lacks_some=True))


# ---- a stream broke ----


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (broken(A, B), Reconfigure((A, B), ALL_ARE_BACK)),
        # It has been dialled again, so it is not a loss.
        (broken(A, B, on_reducer_loss="raise"), Reconfigure((A, B), ALL_ARE_BACK)),
        # A new process is at its address, which takes part immediately if all ranks are there.
        (broken(A, reborn("b", "P-")), without_b()),
        (broken(A, reborn("b")), Reconfigure((A, reborn("b")), "b:1 restarted")),
        (
            broken(down("a"), reborn("b"), ago=GRACE_S),
            Reconfigure((reborn("b"),), "lost a:1, b:1", lacks_some=True),
        ),
        # Nothing listens there.
        (broken(A, down("b", is_absent=True)), without_b()),
        (broken(A, link("b", phase=LinkPhase.OPENING, is_absent=True)), without_b()),
        # Others may come back: reducer c, or rank 1 to reducer a.
        (broken(A, down("b", is_absent=True), down("c"), configuration=epoch("a", "b", "c")), Keep()),
        (broken(link("a", "PL", since=100.0), down("b", is_absent=True)), Keep()),
        # A spare takes over.
        (broken(down("a"), down("b"), C, ago=GRACE_S), Reconfigure((C,), "lost a:1, b:1", lacks_some=True)),
    ],
)
def test_membership_after_a_broken_stream(seen, expected):
    check(seen, expected)


@pytest.mark.parametrize("hurt", [down("b"), link("b", "PL", since=100.0)])
def test_a_member_may_come_back_within_the_grace(hurt):
    until(100.0 + GRACE_S, broken(A, hurt), without_b())


def test_with_no_reducer_at_all_rank_0_waits_for_the_join_timeout():
    expected = ReducerUnavailable, "2 of 2", "60 s (join_timeout_s)", "a:1 (no answer), b:1 (no answer)"
    until(159.0, broken(down("a"), down("b"), ago=GRACE_S, alone_since=99.0), expected)
    # With nothing in flight no rank has to give up.
    check(broken(down("a"), down("b"), alone_since=0.0, is_idle=True), Keep())


def test_other_ranks_wait_for_rank_0s_epoch_as_long_as_for_a_collective():
    late = view(A, B, rank=1, met_since=0.0, broken_since=98.0)
    until(700.0, late, (WorkersMissing,))
    check(replace(late, now=700.0, is_idle=True), Keep())


def test_ranks_that_have_not_come_back_to_a_new_reducer_are_waited_for():
    """They may be busy: the only reducer was restarted, and one rank holds the GIL."""
    seen = view(reborn("a", "P-"), configuration=epoch("a"), broken_since=0.0)
    until(600.0, seen, (WorkersMissing, "rank 1 did not join", "600 s (timeout_s)", ADVICE))


def test_reducers_that_each_miss_another_rank_are_given_up_as_usual():
    links = reborn("a", "P-P"), reborn("b", "PP-")
    until(100.0, view(*links, broken_since=40.0, world_size=3, met_since=41.0), (ReducerUnavailable,))


# ---- ranks that have left ----


def test_a_rank_gone_from_every_live_reducer_is_dead():
    links = link("a", "PL", since=99.0), link("b", "PL", since=98.0), down("c")
    check(broken(*links, ago=GRACE_S), (WorkerLost, "rank 1 (h1)", "a:1, b:1", "out of memory?"))


def test_nobody_waits_for_a_rank_whose_process_has_ended_once_all_reducers_have_lost_it():
    a = link("a", "PL", since=100.0)
    a.peers[1] = replace(a.peers[1], has_ended=True)
    check(broken(a, B), Keep())
    check(broken(a, link("b", "PL", since=100.0)), (WorkerLost,))


def test_other_ranks_only_judge_rank_0():
    gone = link("a", "LL", since=99.0), link("b", "LL", since=99.0)
    check(view(*gone, rank=1), (WorkerLost, "rank 0 (h0)", "a:1, b:1"))
    check(view(link("a", "PPL"), link("b", "PPL"), rank=1, world_size=3), Keep())


def test_a_rank_that_one_reducer_lost_and_a_new_one_never_saw_gets_more_time():
    b = link("b", "PL", since=90.0)
    check(broken(link("a", "P-", up_since=101.0 - ABSENT_S), b, ago=5.0), Keep())
    absent = broken(link("a", "P-", up_since=100.0 - ABSENT_S), b, ago=5.0)
    check(absent, (WorkerLost, "rank 1 (h1)", "a:1, b:1"))
    # A rank that no reducer has lost is not dead.
    check(broken(link("a", "P-", up_since=0.0), down("b"), ago=50.0), Keep())


def test_a_rank_that_left_fails_those_that_wait_for_results():
    left = broken(link("a", "PG"), link("b", "PG"))
    until(100.0 + GRACE_S, left, (PeerLeft, "rank 1 (h1)", "see rank 1's log"))
    check(replace(left, now=100.0 + GRACE_S, is_idle=True), Keep())


def test_two_processes_that_claim_one_rank_at_different_reducers():
    b = link("b")
    b.peers[1] = Peer(1, b"another process!", "h9", b.peers[1].presence)
    check(broken(A, b), (RankTaken, "rank 1", "h9"))


# ---- policies ----


@pytest.mark.parametrize(
    ("links", "is_back"),
    [
        ((A, down("b"), C), False),
        ((A, reborn("b", "P-")), False),
        ((reborn("b"), A, C), True),
        ((reborn("a"), reborn("b")), True),
    ],
)
def test_wait_for_a_reducer_that_is_lost(links, is_back):
    whole = Reconfigure(tuple(sorted(links, key=lambda one: one.id)), ALL_REDUCERS_ARE_BACK)
    check(broken(*links, ago=59.0, on_reducer_loss="wait"), whole if is_back else Keep())


def test_wait_for_processes_that_come_back_at_other_ports():
    """A reducer's further processes choose new ports at each start; its first one does not."""
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
    check(broken(b, a, one, **waiting), Keep())
    check(broken(b, down("a"), one, two, **waiting), Keep())
    check(broken(b, a, one, two, **waiting), Reconfigure((b, a, one, two), ALL_REDUCERS_ARE_BACK))


def test_wait_for_as_many_reducers_as_before_if_their_names_resolve_to_others():
    """A restarted pod has a different address."""
    waiting = {"ago": 59.0, "on_reducer_loss": "wait", "met_since": 0.0}
    check(broken(retired("a"), B, link("c", "P-"), **waiting), Keep())
    check(broken(retired("a"), B, C, **waiting), Reconfigure((B, C), ALL_REDUCERS_ARE_BACK))
    until(101.0, broken(retired("a"), B, **waiting), (ReducerUnavailable, "a:1", "60 s (join_timeout_s)"))


def test_wait_no_longer_than_the_join_timeout():
    waiting = broken(A, down("b"), ago=60.0, on_reducer_loss="wait", met_since=0.0)
    until(100.0, waiting, (ReducerUnavailable, "1 of 2", "60 s (join_timeout_s)", "b:1 (no answer)"))


LOST_B = ReducerUnavailable, "lost b:1", "on_reducer_loss is 'raise'", "'reshard'"


def test_raise_when_a_reducer_is_lost_or_restarted():
    until(100.0 + GRACE_S, broken(A, down("b"), on_reducer_loss="raise"), LOST_B)
    check(broken(A, reborn("b"), on_reducer_loss="raise"), LOST_B)


def test_a_rank_that_one_reducer_misses_first_is_not_taken_for_the_loss_of_that_reducer():
    seen = broken(A, link("b", "PL", since=95.0), ago=5.0, on_reducer_loss="raise")
    until(95.0 + ABSENT_S, seen, LOST_B)
    gone = link("a", "PL", since=99.0), link("b", "PL", since=90.0)
    check(broken(*gone, ago=ABSENT_S, on_reducer_loss="raise"), (WorkerLost,))


# ---- the fallback ----


def test_once_no_reducer_is_left_a_fallback_may_be_started():
    text = "{0} of {0} reducers could not be reached within 60 s (join_timeout_s): {1}".format
    both = FallBack(text(2, "a:1 (no answer), b:1 (no answer)"))
    check(broken(down("a"), down("b"), ago=60.0, alone_since=40.0, may_fall_back=True), both)
    check(forming(down("a"), now=60.0, may_fall_back=True), FallBack(text(1, "a:1 (no answer)")))
    # There is none while a reducer is left.
    for made in (broken(ago=60.0, may_fall_back=True), forming(now=60.0, may_fall_back=True)):
        check(replace(made, links=(link("a", "P-"), down("b"))), Keep())


FALLBACK = link("f", is_fallback=True)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (forming(down("a"), FALLBACK, has_fallen_back=True), Reconfigure((FALLBACK,), ALL_ARE_THERE)),
        (forming(down("a"), down("f"), has_fallen_back=True), Keep()),
        (view(FALLBACK, down("a"), configuration=epoch("f")), Keep()),
        (view(FALLBACK, link("a", "P-"), configuration=epoch("f")), Keep()),
        (
            view(FALLBACK, A, configuration=epoch("f")),
            Reconfigure((A,), "the fallback is no longer needed"),
        ),
    ],
)
def test_the_fallback_may_begin_alone_and_is_left_out_once_another_is_back(seen, expected):
    check(seen, expected)

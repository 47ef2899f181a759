"""Faults that coincide: a second death during the recovery from the first, deaths while joining, streams that break
on one side or in one direction only, and ranks that die. Each case is also shown to fail under a weaker rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from model_check.checking import check
from model_check.world import World
from reduction.errors import ReductionError
from reduction.model import Join, Peers, Welcome

from reducer.core.actions import Action, Send
from reducer.core.job import Job
from worker_plugin.core.epochs import Epochs
from worker_plugin.core.link import Link, LinkPhase
from worker_plugin.core.membership import judge

#: All Joins of two ranks to two reducers are in flight; three of them have arrived; all have arrived, and rank 0 has
#: taken one Welcome.
DIALLED = ("early: rank 0", "early: rank 1")
THREE_JOINS = (*DIALLED, "rank 0 - reducer 0: up", "rank 0 - reducer 1: up", "rank 1 - reducer 0: up")
WELCOME = (*THREE_JOINS, "rank 1 - reducer 1: up", "rank 0 - reducer 0: down Welcome")
#: A collective is in flight at reducer 0, which has died, as both ranks know.
ONE_DEAD = (
    *("rank 0 issues", "rank 1 issues", "crash of reducer 0 losing"),
    *("rank 0 - reducer 0: rank sees", "rank 1 - reducer 0: rank sees"),
)


# ---- two deaths of reducers ----


def test_a_second_reducer_dies_during_the_recovery() -> None:
    check(World(reducers=3, collectives=1, numel=1, is_mute=True), crashes=2, after=ONE_DEAD)


def test_the_only_reducer_dies_again_when_it_is_back() -> None:
    check(World(reducers=1, collectives=1, numel=1, is_hasty=False), crashes=2, restarts=2)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_other_reducer_dies_when_the_first_is_back() -> None:
    check(World(reducers=2, collectives=1, numel=1), 3_000_000, crashes=2, restarts=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_two_of_three_reducers_die() -> None:
    check(World(reducers=3, collectives=1, numel=1), 3_000_000, crashes=2)


# ---- a reducer dies during Join ----


def test_the_only_reducer_dies_while_joining_and_comes_back() -> None:
    check(World(reducers=1, collectives=1, numel=1, is_hasty=False), is_settled=False, crashes=1, restarts=1)


def test_the_only_reducer_dies_while_joining() -> None:
    world = World(reducers=1, collectives=1, numel=1, is_hasty=False, may_lack_reducers=True)
    check(world, is_settled=False, crashes=1)


@pytest.mark.full
@pytest.mark.parametrize("joins", [THREE_JOINS, WELCOME], ids=["three Joins", "one Welcome"])
def test_one_of_two_reducers_dies_while_joining(joins: tuple[str, ...]) -> None:
    world = World(reducers=2, collectives=1, numel=1, is_hasty=False, is_mute=True, may_lack_reducers=True)
    check(world, is_settled=False, after=joins, crashes=1)


# ---- half a stream breaks ----


def test_one_direction_of_a_stream_is_cut() -> None:
    check(World(reducers=1, collectives=1, is_hasty=False), half_cuts=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_one_direction_of_a_stream_is_cut_with_two_reducers() -> None:
    check(World(reducers=2, collectives=1, numel=1), 3_000_000, half_cuts=1)


# ---- a rank dies ----


@pytest.mark.parametrize("mortal", [0, 1])
def test_a_rank_dies_and_the_other_fails_naming_it(mortal: int) -> None:
    check(World(reducers=1, collectives=2, mortal=mortal), deaths=1)


@pytest.mark.parametrize("mortal", [0, 1])
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_rank_dies_with_two_reducers(mortal: int, size: int) -> None:
    numel = 1 if size == 1 else 257
    check(World(reducers=2, collectives=size, numel=numel, mortal=mortal), deaths=1)


@pytest.mark.parametrize("mortal", [0, 1])
def test_one_of_three_ranks_dies_and_the_others_fail_naming_it(mortal: int) -> None:
    check(World(reducers=1, ranks=3, collectives=1, numel=1, mortal=mortal), deaths=1)


@pytest.mark.parametrize("mortal", [0, 1])
def test_a_host_dies_with_a_rank_and_a_reducer(mortal: int) -> None:
    check(World(reducers=2, collectives=1, numel=1, mortal=mortal, is_mute=True), deaths=1, crashes=1)


# ---- a rank breaks, and lives to report it ----


@pytest.mark.parametrize("fragile", [0, 1])
def test_an_error_of_one_rank_reaches_all_whenever_it_happens(fragile: int) -> None:
    check(World(reducers=1, collectives=1, numel=1, fragile=fragile), is_settled=False, breaks=1)


@pytest.mark.parametrize("fragile", [0, 1])
@pytest.mark.parametrize("is_settled", [True, pytest.param(False, marks=pytest.mark.full)])
def test_an_error_of_one_rank_reaches_all_through_two_reducers(fragile: int, is_settled: bool) -> None:
    world = World(reducers=2, collectives=1, numel=1, is_hasty=False, fragile=fragile)
    check(world, is_settled=is_settled, breaks=1)


@pytest.mark.parametrize("fragile", [0, 1])
def test_an_error_of_one_rank_while_the_only_reducer_is_away(fragile: int) -> None:
    world = World(reducers=1, collectives=1, numel=1, is_hasty=False, fragile=fragile)
    check(world, breaks=1, crashes=1, restarts=1)


# ---- weaker rules ----

Rule = Callable[[pytest.MonkeyPatch], None]


def _deaf_during_recovery(patch: pytest.MonkeyPatch) -> None:
    """Treat a stream that breaks before the new epoch has started as the one that broke before."""
    right = Epochs.note_broken

    def note(self: Epochs, now: float) -> None:
        if self.unstarted_since is None:
            right(self, now)

    patch.setattr(Epochs, "note_broken", note)


def _given_up(patch: pytest.MonkeyPatch) -> None:
    """Never redial a reducer that does not answer a Join."""
    right = Link.down

    def down(self: Link, error: ReductionError | None, now: float) -> None:
        was_opening = self.phase is LinkPhase.OPENING
        right(self, error, now)
        if was_opening:
            self.phase = LinkPhase.RETIRED

    patch.setattr(Link, "down", down)


def _patient(patch: pytest.MonkeyPatch) -> None:
    """Let ranks wait for the first epoch without a limit."""
    right = judge._first_epoch
    patch.setattr(judge, "_first_epoch", lambda view: right(replace(view, join_timeout_s=math.inf)))


def _quiet_return(patch: pytest.MonkeyPatch) -> None:
    """Let a rank that redials before the reducer has noticed its loss continue as if nothing had happened."""
    right = Job.on_join

    def on_join(self: Job, stream: int, join: Join) -> list[Action]:
        view = self.ranks.get(join.rank)
        if view is None or view.stream is None:
            return right(self, stream, join)
        view.stream = stream
        return [
            Send(stream, Welcome(self.incarnation, self.credit_bytes)),
            Send(stream, Peers(self._concerning(join.rank), False)),
            *self._tell_of(join.rank),
        ]

    patch.setattr(Job, "on_join", on_join)


def _unwatched(*watchers: int) -> Rule:
    """Keep these ranks from checking for lost ranks."""

    def rule(patch: pytest.MonkeyPatch) -> None:
        right = judge._lost_rank
        patch.setattr(judge, "_lost_rank", lambda view: None if view.rank in watchers else right(view))

    return rule


def _nameless(patch: pytest.MonkeyPatch) -> None:
    """Omit the lost rank from the error."""
    patch.setattr(judge, "WorkerLost", lambda text: ReductionError("a rank is gone"))


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        (_deaf_during_recovery, test_a_second_reducer_dies_during_the_recovery),
        (_given_up, test_the_only_reducer_dies_while_joining_and_comes_back),
        (_patient, test_the_only_reducer_dies_while_joining),
        (_quiet_return, test_one_direction_of_a_stream_is_cut),
        (_unwatched(1), lambda: test_a_rank_dies_and_the_other_fails_naming_it(0)),
        (_unwatched(0), lambda: test_a_rank_dies_and_the_other_fails_naming_it(1)),
        (_unwatched(0), lambda: test_one_of_three_ranks_dies_and_the_others_fail_naming_it(1)),
        (_nameless, lambda: test_one_of_three_ranks_dies_and_the_others_fail_naming_it(1)),
    ],
)
def test_weaker_rules_fail(rule: Rule, case: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Show that the model check detects each weaker rule."""
    rule(monkeypatch)
    with pytest.raises(AssertionError, match=r"nobody can go on|failed|refused"):
        case()

"""Every interleaving of small cases, over the real cores of both sides.

Every reachable state is checked: no sum is wrong, nothing is counted twice, no contribution is needed after its
release, and no rank fails. From every state all ranks can still get everything and close. Cases that run without
`--full` are explored completely, and so are the others unless they give a maximum number of states.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from model_check.checking import check
from model_check.explorer import Violation, explore
from model_check.state import State_
from model_check.world import World
from reduction.model import Presence

from reducer.core.job import Job
from worker_plugin.core import leader
from worker_plugin.core.flow import convoy
from worker_plugin.core.rank import RankCore, State
from worker_plugin.core.window import Window


def test_joining_without_faults() -> None:
    check(World(reducers=2, collectives=1, numel=1), is_settled=False)


def test_two_collectives_without_faults() -> None:
    check(World(reducers=2, collectives=2))


def test_one_chunk_of_credit() -> None:
    check(World(reducers=1, collectives=2, credit_bytes=1024))


@pytest.mark.full
def test_stream_cut_while_joining() -> None:
    check(World(reducers=1, collectives=1, is_hasty=False), is_settled=False, cuts=1)


def test_stream_cut_with_one_reducer() -> None:
    check(World(reducers=1, collectives=2, is_hasty=False), cuts=1)


def test_crash_and_restart_of_the_only_reducer() -> None:
    check(World(reducers=1, collectives=2, is_hasty=False), crashes=1, restarts=1)


def test_crash_of_one_of_two_reducers() -> None:
    check(World(reducers=2, collectives=1), crashes=1)


@pytest.mark.timeout(900)
@pytest.mark.full
def test_a_reducer_is_added() -> None:
    """Some of the paths lead through an epoch in which the added reducer takes part."""
    world = World(reducers=2, named=1, collectives=1, numel=1)
    is_end, parts = world.is_goal, 0

    def is_goal(state: State_) -> bool:
        nonlocal parts
        parts += world.takes_part(state, 1)
        return is_end(state)

    world.is_goal = is_goal
    check(world, findings=1)
    assert parts > 0


def test_ranks_are_dropped_with_collectives_in_flight() -> None:
    check(World(reducers=2, collectives=2, numel=1, dropped=(0, 1)))


def test_a_dropped_rank_and_a_crash_and_restart_of_the_only_reducer() -> None:
    check(World(reducers=1, collectives=1, is_hasty=False, dropped=(1,)), crashes=1, restarts=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_crash_of_one_of_two_reducers_with_two_collectives() -> None:
    check(World(reducers=2, collectives=2, numel=1), 3_000_000, crashes=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_stream_cut_with_two_reducers() -> None:
    check(World(reducers=2, collectives=2, numel=1), 3_000_000, cuts=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_crash_and_return_of_one_of_two_reducers() -> None:
    check(World(reducers=2, collectives=1, numel=1), 3_000_000, crashes=1, restarts=1)


def test_the_explorer_finds_violations_and_dead_ends() -> None:
    """Count to 3 in steps of 1 or 2, where 3 is the only good end and 4 is forbidden."""

    def steps(state: object) -> list[tuple[str, int]]:
        if state == 4:
            raise Violation("four")
        return [(f"+{step}", int(str(state)) + step) for step in (1, 2) if state != 3]

    report = explore(0, steps, lambda state: state == 3, states_max=100, seconds_max=10)
    assert report.violation == ("four", ["+2", "+2"])

    dead_end = {0: [("a", 1), ("b", 2)], 1: [("c", 3)], 2: [], 3: []}
    report = explore(
        0, lambda state: dead_end[state], lambda state: state == 3, states_max=100, seconds_max=10
    )
    assert report.stuck == (2, ["b"])


def test_leaving_at_once_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped state must not take along the collectives that it has issued."""

    def leave(self: RankCore, now: float) -> None:
        if self.last_issued is not None:
            self._on_close(now)

    monkeypatch.setattr(RankCore, "_close_if_idle", leave)
    with pytest.raises(AssertionError, match=r"rank 0 failed: ClosedError|nobody can go on"):
        check(World(reducers=1, collectives=1, numel=1, dropped=(0,)))


@pytest.mark.parametrize("rule", ["eager release", "closing at once", "results for re-dialled ranks"])
def test_weaker_rules_fail(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that look right but are wrong: the model check must detect them."""
    if rule == "eager release":  # forget a contribution as soon as this rank holds the result
        right = Window.take

        def eager(self: Window, seq: int, chunk: int) -> bool:
            is_whole = right(self, seq, chunk)
            self.minimum = self.held
            return is_whole

        monkeypatch.setattr(Window, "take", eager)
    elif rule == "closing at once":  # close after the last result, whether or not the others have it
        monkeypatch.setattr(
            RankCore,
            "_leave_if_done",
            lambda self, now: self.state is State.CLOSING and self._say_goodbye(),
        )
    else:  # treat a rank that sent Hello on an earlier stream of the epoch as present
        monkeypatch.setattr(Job, "on_lost", _lose_but_keep_hello)
    world = World(reducers=1, collectives=1, is_hasty=False)
    faults = {"crashes": 1, "restarts": 1} if rule != "results for re-dialled ranks" else {"cuts": 1}
    with pytest.raises(AssertionError, match=r"released|nobody can go on|failed|refused"):
        check(world, **faults)


def _lose_but_keep_hello(self: Job, rank: int) -> list[object]:
    self.ranks[rank].stream = None
    self.ranks[rank].presence = Presence.LOST
    return self._tell_of(rank)


# ---- unequal shares ----


@pytest.fixture
def unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the second reducer twice the share of the first, and let no lane be ahead of another."""
    monkeypatch.setattr(leader, "weights", lambda links: tuple(link.id + 1 for link in links))
    monkeypatch.setattr(convoy, "LEAD_CHUNKS", 0)
    monkeypatch.setattr(convoy, "LEAD_CHUNKS_LEAST", 0)


@pytest.mark.usefixtures("unequal")
def test_two_collectives_with_unequal_shares() -> None:
    check(World(reducers=2, collectives=2))
    check(World(reducers=2, collectives=1, numel=513))


@pytest.mark.usefixtures("unequal")
@pytest.mark.full
def test_a_crash_with_unequal_shares() -> None:
    check(World(reducers=2, collectives=1), crashes=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("unequal")
def test_a_stream_cut_with_unequal_shares() -> None:
    check(World(reducers=2, collectives=2, numel=1), 3_000_000, cuts=1)


def test_lanes_that_wait_for_those_behind_them_fail(monkeypatch: pytest.MonkeyPatch, unequal: None) -> None:
    """The model check must detect it: the slowest lane itself is blocked."""
    right = convoy.Convoy.update

    def update(self: convoy.Convoy, lanes: Iterable[convoy.InStep]) -> None:
        right(self, lanes)
        self.limit -= 1

    monkeypatch.setattr(convoy.Convoy, "update", update)
    with pytest.raises(AssertionError, match="nobody can go on"):
        check(World(reducers=2, collectives=1))

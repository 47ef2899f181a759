"""Every interleaving of small elastic jobs: no two generations ever both continue, and no worker left out returns.

The model: workers die, new ones take their ranks, and messages are late, lost or reordered at will. So at any moment
any worker may propose any generation that it may join itself, and any worker may join any generation ever proposed. A
worker that has joined a generation learns at some later moment, or never, that all have. Every worker immediately
knows which workers have died and the last generation that each had joined, since knowing less only forbids
generations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import pytest
from model_check.explorer import Report, Violation, explore

from worker_plugin.elastic.membership.lineage import Generation, Lineage, Worker


class Mind(NamedTuple):
    """The knowledge of one worker."""

    started: Generation | None
    joined: tuple[Generation, ...]


class Dead(NamedTuple):
    """The remains of a dead worker: the highest number of a generation that it has joined."""

    number: int


class Jobs(NamedTuple):
    """One state: all workers so far, the proposed and started generations, and the remaining faults."""

    minds: tuple[tuple[Worker, Mind | Dead], ...]
    #: Each with the generations that also count for its newcomers: those that its proposer has joined or knows to have
    #: started.
    proposed: tuple[tuple[Generation, tuple[Generation, ...]], ...]
    started: tuple[Generation, ...]
    deaths: int
    newcomers: int
    #: The workers that have learned of a generation's start, and so may have contributed to its sums.
    learned: frozenset[tuple[Worker, Generation]] = frozenset()


class World:
    def __init__(
        self, size: int, proposals: int, lineage: type[Lineage] = Lineage, *, inherits: bool = True
    ) -> None:
        self.size, self.proposals, self._lineage, self.inherits = size, proposals, lineage, inherits

    def start(self, *, deaths: int, newcomers: int = 0) -> Jobs:
        """Return the state in which the first generation has started, as all workers know."""
        workers = tuple(Worker(rank, "a") for rank in range(self.size))
        first = Generation(1, "first", workers)
        minds = tuple((worker, Mind(first, ())) for worker in workers)
        return Jobs(minds, (), (first,), deaths, newcomers)

    def after(self, state: Jobs, *labels: str) -> Jobs:
        """Return the state after these steps, each named by its full label with workers as numbers."""
        for label in labels:
            state = next(after for name, after in self._steps(state) if _short(name) == label)
        return state

    def successors(self, state: Jobs) -> Iterator[tuple[str, Jobs]]:
        for label, after in self._steps(state):
            going_on = [one for one in after.started if self._goes_on(after, one)]
            if len(going_on) > 1:
                raise Violation(f"{going_on} both go on after {label}")
            if left_out := self._returned(after):
                raise Violation(f"{left_out} lacks sums after {label}")
            yield label, after

    def is_goal(self, state: Jobs) -> bool:
        return True

    def _steps(self, state: Jobs) -> Iterator[tuple[str, Jobs]]:
        for index, (worker, mind) in enumerate(state.minds):
            if isinstance(mind, Dead):
                continue
            lineage = self._of(worker, mind)
            lineage.ended = {one: dead.number for one, dead in state.minds if isinstance(dead, Dead)}
            if len(state.proposed) < self.proposals:
                for generation in self._proposals(state, lineage):
                    yield f"{worker} proposes {generation}", self._propose(state, generation, mind)
            for generation, before in state.proposed:
                is_new = mind.started is None and not mind.joined
                lineage.joined = joined = before if is_new and self.inherits else mind.joined
                if lineage.may_join(generation):
                    after = self._put(state, index, Mind(mind.started, (*joined, generation)))
                    yield f"{worker} joins {generation}", self._start(after, generation)
            if mind.joined and mind.joined[-1] in state.started:
                after = self._put(state, index, Mind(mind.joined[-1], ()))
                yield (
                    f"{worker} learns of the start",
                    after._replace(learned=after.learned | {(worker, mind.joined[-1])}),
                )
            if state.deaths:
                yield (
                    f"{worker} dies",
                    self._put(state, index, Dead(lineage.number))._replace(deaths=state.deaths - 1),
                )
        if state.newcomers:
            for rank in range(self.size):
                if all(isinstance(mind, Dead) for worker, mind in state.minds if worker.rank == rank):
                    fresh = (Worker(rank, "b"), Mind(None, ()))
                    minds = tuple(sorted((*state.minds, fresh), key=lambda one: one[0]))
                    yield f"{rank} is back", state._replace(minds=minds, newcomers=state.newcomers - 1)

    def _proposals(self, state: Jobs, lineage: Lineage) -> Iterator[Generation]:
        """Yield all proposals of a worker; those with the same ranks and number have one id per proposer."""
        if lineage.started is None and not lineage.joined:
            return  # only a worker that has taken part may propose
        living = [worker for worker, mind in state.minds if isinstance(mind, Mind) or worker.nonce == "a"]
        before = lineage.joined if lineage.started is None else (lineage.started, *lineage.joined)
        known = {worker for one in before for worker in one.workers}
        new = {worker for worker, mind in state.minds if mind == Mind(None, ())}
        for count in range(1, self.size + 1):
            for workers in combinations(living, count):
                ranks = [worker.rank for worker in workers]
                newcomers = tuple(worker for worker in workers if worker not in known)
                generation = Generation(lineage.number + 1, str(lineage.own.rank), workers, newcomers)
                if len(set(ranks)) == count and new.issuperset(newcomers) and lineage.may_join(generation):
                    yield generation

    def _propose(self, state: Jobs, generation: Generation, mind: Mind) -> Jobs:
        before = mind.joined if mind.started is None else (mind.started, *mind.joined)
        if not state.newcomers and all(worker.nonce == "a" for worker, _ in state.minds):
            before = ()  # not used by any newcomer, and this reduces the number of states
        proposed = {*state.proposed, (generation, before)}
        return state._replace(proposed=tuple(sorted(proposed, key=repr)))

    def _start(self, state: Jobs, generation: Generation) -> Jobs:
        """Start a generation at the moment when all of its workers are in it."""
        if generation in state.started or not self._goes_on(state, generation):
            return state
        return state._replace(started=tuple(sorted((*state.started, generation), key=repr)))

    @staticmethod
    def _returned(state: Jobs) -> Worker | None:
        """Return a worker that was left out of sums but is in a later generation as if it had them."""
        for first, second, third in combinations(sorted(state.started, key=lambda one: one.number), 3):
            if any((worker, second) not in state.learned for worker in second.workers):
                continue  # no worker has a sum of it
            for worker in set(first.workers).intersection(third.workers).difference(second.workers):
                if first.number < second.number < third.number:
                    return worker
        return None

    def _goes_on(self, state: Jobs, generation: Generation) -> bool:
        """Return whether all workers of a generation are in it now, so that its sums can be completed."""
        minds = dict(state.minds)
        return all(self._current(minds.get(worker)) == generation for worker in generation.workers)

    @staticmethod
    def _current(mind: Mind | Dead | None) -> Generation | None:
        if not isinstance(mind, Mind):
            return None
        return mind.joined[-1] if mind.joined else mind.started

    def _of(self, worker: Worker, mind: Mind) -> Lineage:
        lineage = self._lineage(worker, self.size)
        lineage.started, lineage.joined = mind
        return lineage

    @staticmethod
    def _put(state: Jobs, index: int, mind: Mind | Dead) -> Jobs:
        minds = list(state.minds)
        minds[index] = (minds[index][0], mind)
        return state._replace(minds=tuple(minds))


def _short(label: str) -> str:
    """Return a label with workers as numbers: "1 joins 1,2,3"."""
    head, _, rest = label.partition("Generation")
    who = re.findall(r"rank=(\d+)", head)
    ranks = re.findall(r"rank=(\d+)", rest)
    return f"{who[0]} {head.split()[-1]} {','.join(ranks)}".strip()


def check(world: World, start: Jobs) -> Report:
    report = explore(start, world.successors, world.is_goal, states_max=3_000_000, seconds_max=600)
    print(f"{report.states} states, {report.seconds:.0f} s")
    assert report.violation is None, "\n".join((report.violation[0], *report.violation[1]))
    assert report.is_complete
    return report


#: Worker 0 is cut off from the others, and 3 hears both sides. 1 and 2 have joined a generation without 0.
DIVIDED = ("1 proposes 1,2,3", "1 joins 1,2,3", "2 joins 1,2,3")
#: 3 has joined that generation as well, so it has started, and 1 and 2 know that.
STARTED = (*DIVIDED, "3 joins 1,2,3", "1 start", "2 start")
#: 0 and 3 have continued without 1 and 2, which do not know it. Then 0 has died, so that 1, 2 and 3 remain.
HALVED = ("0 proposes 0,3", "0 joins 0,3", "3 joins 0,3", "0 dies")


@pytest.mark.parametrize(
    ("size", "proposals", "deaths", "newcomers"),
    [
        (2, 3, 1, 1),
        (3, 2, 1, 1),
        pytest.param(2, 4, 1, 1, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
        pytest.param(3, 2, 2, 1, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
        pytest.param(3, 3, 1, 0, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
        pytest.param(4, 2, 1, 0, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
    ],
)
def test_no_two_generations_both_continue(size: int, proposals: int, deaths: int, newcomers: int) -> None:
    world = World(size, proposals)
    check(world, world.start(deaths=deaths, newcomers=newcomers))


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(DIVIDED, id="divided", marks=pytest.mark.full),
        pytest.param(STARTED, id="started"),
        pytest.param(HALVED, id="halved"),
    ],
)
def test_no_two_generations_of_a_divided_job_both_continue(steps: tuple[str, ...]) -> None:
    world = World(4, 3)
    check(world, world.after(world.start(deaths=steps.count("0 dies")), *steps))


def test_half_of_a_job_continues_once_the_other_half_is_known_to_have_ended() -> None:
    """It may not continue earlier either: an end is all that a supervisor on another host can report."""
    world = World(4, 1)
    start = world.start(deaths=2)
    for steps, may in [((), False), (("0 dies",), True), (("2 dies",), True), (("0 dies", "2 dies"), True)]:
        labels = [_short(label) for label, _ in world.successors(world.after(start, *steps))]
        assert ("1 proposes 1,3" in labels) == may, steps


class _ForgetsJoined(Lineage):
    """Requires a majority of the last started generation, and forgets the generations joined since."""

    def may_join(self, generation: Generation) -> bool:
        joined, number, self.joined = self.joined, self.number, ()
        try:
            return generation.number > number and super().may_join(generation)
        finally:
            self.joined = joined


class _ForgetsStarted(Lineage):
    """Requires a majority of the generation joined last, whether or not that has started."""

    def may_join(self, generation: Generation) -> bool:
        if not self.joined:
            return super().may_join(generation)
        is_newer = self.own in generation.workers and generation.number > self.number
        return is_newer and generation.is_majority_of(self.joined[-1], self.ended)


class _ForgetsNumbers(Lineage):
    """Ignores all ended workers, whatever they have joined before."""

    def may_join(self, generation: Generation) -> bool:
        ended, self.ended = self.ended, dict.fromkeys(self.ended, 0)
        try:
            return super().may_join(generation)
        finally:
            self.ended = ended


class _AnyHalf(Generation):
    """Accepts any half of the workers."""

    def is_majority_of(self, before: Generation, ended: Mapping[Worker, int]) -> bool:
        return 2 * len(set(self.workers).intersection(before.workers)) >= len(before.workers)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [(_ForgetsStarted, DIVIDED), (_ForgetsJoined, STARTED), (_ForgetsNumbers, HALVED)],
)
def test_weaker_rules_fail(rule: type[Lineage], steps: tuple[str, ...]) -> None:
    world = World(4, 3, rule)
    start = world.after(world.start(deaths=steps.count("0 dies")), *steps)
    report = explore(start, world.successors, world.is_goal, states_max=400_000, seconds_max=100)
    assert report.violation is not None
    assert "both go on" in report.violation[0]


class _LetsReturn(Lineage):
    """Lets a worker that was left out of a generation be in later ones."""

    def may_join(self, generation: Generation) -> bool:
        return super().may_join(replace(generation, newcomers=generation.workers))


def test_letting_left_out_workers_return_fails() -> None:
    world = World(2, 3, _LetsReturn)
    report = explore(
        world.start(deaths=0), world.successors, world.is_goal, states_max=400_000, seconds_max=100
    )
    assert report.violation is not None
    assert "lacks sums" in report.violation[0]


def test_newcomers_that_do_not_inherit_fail() -> None:
    world = World(2, 3, inherits=False)
    start = world.start(deaths=1, newcomers=1)
    report = explore(start, world.successors, world.is_goal, states_max=400_000, seconds_max=100)
    assert report.violation is not None


def test_any_half_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generation, "is_majority_of", _AnyHalf.is_majority_of)
    world = World(2, 2)
    report = explore(
        world.start(deaths=0), world.successors, world.is_goal, states_max=100_000, seconds_max=60
    )
    assert report.violation is not None

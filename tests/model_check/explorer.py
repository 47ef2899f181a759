"""A small explicit-state explorer that visits all interleavings and reachable states, and reports shortest traces."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field


class Violation(Exception):
    """A step that must never be possible; raised by the model's `successors`."""


@dataclass
class Report:
    """The findings of an exploration."""

    states: int = 0
    goals: int = 0
    is_complete: bool = True
    seconds: float = 0.0
    #: Shortest trace to a step that must never be possible.
    violation: tuple[str, list[str]] | None = None
    #: Shortest trace to a state from which no goal is reachable.
    stuck: tuple[Hashable, list[str]] | None = None
    finals: set[str] = field(default_factory=set)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Disable garbage collection: states have no cycles, and it took a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_no_collections()
def explore(
    start: Hashable,
    successors: Callable[[Hashable], Iterable[tuple[str, Hashable]]],
    is_goal: Callable[[Hashable], bool],
    *,
    states_max: int,
    seconds_max: float,
) -> Report:
    """Visit all states breadth first; then check that a goal is reachable from each of them.

    Args:
        start: the first state.
        successors: (label, next state) of every possible step; raises Violation for a forbidden one.
        is_goal: whether a state is a desired end.
        states_max: stop after this many states; states that were not expanded count as good.
        seconds_max: stop after this time.
    """
    began = time.monotonic()
    number = {start: 0}
    states = [start]
    parent: list[tuple[int, str]] = [(-1, "")]
    followers: list[list[int] | None] = []
    report = Report()
    todo = deque([0])

    def trace(index: int) -> list[str]:
        labels: list[str] = []
        while index > 0:
            index, label = parent[index]
            labels.append(label)
        return labels[::-1]

    while todo:
        if len(states) >= states_max or time.monotonic() - began > seconds_max:
            report.is_complete = False
            break
        index = todo.popleft()
        following: list[int] = []
        try:
            for label, state in successors(states[index]):
                found = number.get(state)
                if found is None:
                    found = number[state] = len(states)
                    states.append(state)
                    parent.append((index, label))
                    todo.append(found)
                following.append(found)
        except Violation as violation:
            report.violation = (str(violation), trace(index))
            break
        followers.append(following)
    report.states = len(states)
    report.seconds = time.monotonic() - began
    if report.violation is None:
        _check_progress(report, states, followers, is_goal, trace)
    return report


def _check_progress(
    report: Report,
    states: list[Hashable],
    followers: list[list[int] | None],
    is_goal: Callable[[Hashable], bool],
    trace: Callable[[int], list[str]],
) -> None:
    before: list[list[int]] = [[] for _ in states]
    good = bytearray(len(states))
    todo: list[int] = []
    for index, state in enumerate(states):
        if index >= len(followers) or is_goal(state):
            report.goals += index < len(followers)
            good[index] = 1
            todo.append(index)
        for follower in followers[index] or () if index < len(followers) else ():
            before[follower].append(index)
    while todo:
        for index in before[todo.pop()]:
            if not good[index]:
                good[index] = 1
                todo.append(index)
    stuck = good.find(0)
    if stuck >= 0:
        report.stuck = (states[stuck], trace(stuck))

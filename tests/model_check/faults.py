"""What may go wrong, and when: any fault for which a state still has budget, at any moment.

crash      a reducer dies; the last frames that it sent arrive, or not
restart    a new process replaces it
cut        a stream breaks; each side notices at its own time, and one direction loses its last frames
half cut   one direction loses everything from now on; the other continues until one side notices
death      a rank dies; the last frames that it sent arrive, or not
break      a rank has an error of its own, and lives to report it
finding    no fault: rank 0 finds the reducers that were not named at the start
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from model_check.state import State_, Stream, put, tidy


class Place(Protocol):
    """The part of the world that faults use."""

    #: The rank that may die, if any.
    mortal: int | None

    #: The rank that may break, if any.
    fragile: int | None

    def new_reducer(self, index: int, life: int) -> int:
        """Return the number of a reducer that has just started."""

    def broken(self, state: State_, rank: int) -> State_:
        """Return the state after an error in a rank's process."""

    def found(self, state: State_) -> State_:
        """Return the state after rank 0 has found all reducers."""


def faults(world: Place, state: State_) -> Iterator[tuple[str, State_]]:
    """Yield every fault that is possible in a state."""
    if state.crashes or state.restarts:
        yield from _crashes(world, state)
    if state.cuts or state.half_cuts:
        yield from _cuts(state)
    if state.deaths and world.mortal is not None:
        yield from _death(state, world.mortal)
    if state.breaks and world.fragile is not None:
        after = world.broken(state._replace(breaks=state.breaks - 1), world.fragile)
        yield f"break of rank {world.fragile}", after
    if state.findings:
        yield "rank 0 finds more reducers", world.found(state._replace(findings=state.findings - 1))


def _crashes(world: Place, state: State_) -> Iterator[tuple[str, State_]]:
    for index, number in enumerate(state.reducers):
        reducers = list(state.reducers)
        if number >= 0 and state.crashes:
            reducers[index] = -1
            for loses_tails in (True, False):
                streams = tuple(
                    stream._replace(
                        up=(),
                        down=() if loses_tails else stream.down,
                        reducer_end=False,
                        is_up_cut=True,
                        is_down_cut=True,
                    )
                    if stream.reducer == index
                    else stream
                    for stream in state.streams
                )
                after = state._replace(
                    reducers=tuple(reducers), streams=tidy(streams), crashes=state.crashes - 1
                )
                yield f"crash of reducer {index}{' losing tails' * loses_tails}", after
        elif number < 0 and state.restarts:
            reducers[index] = world.new_reducer(index, state.restarts)
            after = state._replace(reducers=tuple(reducers), restarts=state.restarts - 1)
            yield f"restart of reducer {index}", after


def _cuts(state: State_) -> Iterator[tuple[str, State_]]:
    for stream in state.streams:
        if not (stream.rank_end and stream.reducer_end) or stream.is_cut:
            continue
        name = f"rank {stream.rank} - reducer {stream.reducer}"
        ups, downs = {"up": (), "is_up_cut": True}, {"down": (), "is_down_cut": True}
        if state.cuts:
            for side in ("up", "down"):
                broken = stream._replace(is_up_cut=True, is_down_cut=True, **{side: ()})
                yield f"cut {name}, {side} lost", put(state, broken)._replace(cuts=state.cuts - 1)
        if state.half_cuts:
            for side, changes in (("up", ups), ("down", downs)):
                half = stream._replace(**changes)
                yield f"cut {name}, {side} only", put(state, half)._replace(half_cuts=state.half_cuts - 1)


def _death(state: State_, mortal: int) -> Iterator[tuple[str, State_]]:
    ranks = tuple(-1 if rank == mortal else number for rank, number in enumerate(state.ranks))
    for loses_tails in (True, False):
        streams = tuple(
            _orphaned(stream, loses_tails) if stream.rank == mortal else stream for stream in state.streams
        )
        after = state._replace(ranks=ranks, streams=tidy(streams), deaths=state.deaths - 1)
        yield f"death of rank {mortal}{' losing tails' * loses_tails}", after


def _orphaned(stream: Stream, loses_tail: bool) -> Stream:
    up = () if loses_tail else stream.up
    return stream._replace(up=up, down=(), rank_end=False, is_up_cut=True, is_down_cut=True)

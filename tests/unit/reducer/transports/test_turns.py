"""Turns: how many, which is next, and how long each may take.

The error for a call that waits too long, or keeps others waiting, is tested in `tests/conformance/test_limits.py`.
"""

import asyncio
import contextlib

import pytest
from reduction.errors import MalformedFrame, ResourceExhausted

from reducer.transports.turns import Turns

#: Longer than any test takes.
NEVER_S = 600.0


def turns(count, *, waiting_max=100, wait_s=NEVER_S, use_s=NEVER_S, hurry_s=NEVER_S):
    return Turns(count, waiting_max, wait_s=wait_s, use_s=use_s, hurry_s=hurry_s)


class Caller:
    """Takes a turn, and keeps it until told otherwise."""

    def __init__(self, those, connection):
        self.has_turn = False
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._call(those, connection))

    async def _call(self, those, connection):
        async with those.take(connection):
            self.has_turn = True
            await self.done.wait()

    async def leave(self):
        self.done.set()
        await self.task

    async def cancel(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def callers(those, connections):
    """Return callers that arrived in this order; each has a turn or waits for one."""
    made = []
    for connection in connections:
        made.append(Caller(those, connection))
        await settle()
    return made


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def allowed(those):
    """Return how long the turns in use may take, in seconds."""
    return [round(end.when() - began, 3) for end, began in those._begun.items()]


def who(made):
    return [number for number, caller in enumerate(made) if caller.has_turn]


async def order_of(those, made):
    """Let all finish in turn; return the order in which the turns came."""
    order = who(made)
    for number in order:  # which grows
        await made[number].leave()
        await settle()
        order += [other for other in who(made) if other not in order]
    return order


async def test_turns_are_limited_in_number_and_granted_in_order_of_arrival():
    those = turns(2)
    made = await callers(those, "abcde")
    assert (who(made), those.free) == ([0, 1], 0)
    assert await order_of(those, made) == [0, 1, 2, 3, 4]
    assert those.free == 2


async def test_connections_take_turns_however_many_wait_on_each():
    those = turns(1)
    made = await callers(those, "aaaabbc")
    assert await order_of(those, made) == [0, 1, 4, 6, 2, 5, 3]


async def test_a_waiting_caller_may_leave():
    those = turns(1)
    made = await callers(those, "aabbc")
    await made[1].cancel()
    await made[2].cancel()
    made[3].task.cancel()  # still queued when it gets its turn
    await made[0].leave()
    await settle()
    assert who(made) == [0, 4]
    await made[4].leave()
    assert those.free == 1


async def test_a_turn_is_not_lost_when_its_caller_leaves_as_it_is_granted():
    those = turns(1)
    made = await callers(those, "abc")
    made[0].done.set()
    while made[1].task.cancelling() == 0:
        await asyncio.sleep(0)
        if those._waiting == 1:  # b has the turn, but has not been notified
            made[1].task.cancel()
    await settle()
    assert who(made) == [0, 2]
    await made[2].leave()
    assert those.free == 1


async def test_an_error_in_its_block_ends_a_turn():
    those = turns(1)
    with pytest.raises(ValueError, match="of the block"):
        async with those.take("a"):
            raise ValueError("of the block")
    assert those.free == 1


async def test_a_caller_that_sends_too_much_keeps_its_turn_for_a_moment():
    those = turns(1)
    made = await callers(those, "a")
    late = Caller(those, "b")
    await made[0].leave()
    await settle()
    assert late.has_turn
    await late.leave()
    with pytest.raises(MalformedFrame):
        async with those.take("a"):
            raise MalformedFrame("too long")
    late = Caller(those, "b")
    await settle()
    assert not late.has_turn
    await late.leave()
    assert those.free == 1


async def test_a_turn_is_limited_in_time():
    those = turns(1, use_s=0.05)
    caller = Caller(those, "a")
    with pytest.raises(ResourceExhausted, match=r"^no message within 0\.05 s: try again$"):
        await caller.task
    assert those.free == 1


async def test_turns_are_shortened_while_others_wait():
    those = turns(2, hurry_s=60.0)
    made = await callers(those, "ab")
    assert allowed(those) == [NEVER_S, NEVER_S]
    made += await callers(those, "cd")
    assert allowed(those) == [60.0, 60.0]
    await made[2].cancel()
    assert allowed(those) == [60.0, 60.0]
    await made[3].cancel()
    assert allowed(those) == [NEVER_S, NEVER_S]

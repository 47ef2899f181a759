"""Turns that decide which stranger's first message is read next.

Few messages are read at a time, because gRPC may hold FRAME_BYTES_MAX and a copy for each. Other calls
wait and are not refused, because all ranks of a job arrive together. Connections take turns, no matter
how many calls of each are waiting. A call that has a turn but sends nothing soon loses it if others
wait, so that idle strangers block no one. A call that sends too much keeps its turn for a moment, which
leaves the CPU to jobs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from reduction.errors import MalformedFrame, ResourceExhausted

from reducer.security import peer_of

#: How long a turn continues after a message that is too long, in seconds. With 4 turns, at most 40
#: such messages are read per second. `python -m benchmarks.micro.flood` measures how much a flood
#: slows a job down.
PENALTY_S = 0.1


class Turns:
    """A limited number of turns. Use it on the loop's thread.

    Args:
        count: number of simultaneous turns.
        waiting_max: number of calls that may wait for a turn.
        wait_s: maximum wait for a turn, in seconds.
        use_s: maximum duration of a turn, in seconds.
        hurry_s: maximum duration of a turn while others wait, in seconds.
    """

    def __init__(self, count: int, waiting_max: int, *, wait_s: float, use_s: float, hurry_s: float) -> None:
        #: Number of free turns. There are none while calls wait.
        self.free = count
        self._waiting_max = waiting_max
        self._wait_s = wait_s
        self._use_s = use_s
        self._hurry_s = hurry_s
        #: Start time of each turn in use, by the timeout that will end it.
        self._begun: dict[asyncio.Timeout, float] = {}
        #: Waiting calls by connection. The first connection gets the next turn.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._waiting = 0

    async def read(self, context: grpc.aio.ServicerContext[Any, Any], bytes_max: int) -> Any:
        """Wait for a turn, and return the next message of a call, or EOF.

        Raises:
            ResourceExhausted: see `take`.
            MalformedFrame: the message is too long.
        """
        async with self.take(peer_of(context)):
            data: Any = await context.read()
            if data is not grpc.aio.EOF and len(data) > bytes_max:
                text = f"length of a first message is {len(data)}; allowed: 0 to {bytes_max}"
                raise MalformedFrame(text)
            return data

    @asynccontextmanager
    async def take(self, connection: str) -> AsyncIterator[None]:
        """Wait for a turn, and keep it until the block ends, or longer after a MalformedFrame.

        Raises:
            ResourceExhausted: the turn did not come in time, or the block took too long.
            MalformedFrame: the block raised it. The turn lasts PENALTY_S longer.
        """
        await self._wait(connection)
        loop = asyncio.get_running_loop()
        penalty_s = 0.0
        began = loop.time()
        end = asyncio.timeout_at(began + self._allowed_s)
        try:
            async with end:
                self._begun[end] = began
                yield
        except TimeoutError:
            when = end.when()
            assert when is not None
            while_others = " while others waited" if when < began + self._use_s else ""
            raise ResourceExhausted(
                f"no message within {when - began:.3g} s{while_others}: try again"
            ) from None
        except MalformedFrame:
            penalty_s = PENALTY_S
            raise
        finally:
            self._begun.pop(end, None)
            if penalty_s:
                loop.call_later(penalty_s, self._pass_on)
            else:
                self._pass_on()

    @property
    def _allowed_s(self) -> float:
        return self._hurry_s if self._queues else self._use_s

    async def _wait(self, connection: str) -> None:
        if self.free:
            self.free -= 1
            return
        if self._waiting >= self._waiting_max:
            limit = f"{self._waiting_max} calls wait for their turn, which is this reducer's limit"
            raise ResourceExhausted(f"{limit}: try again")
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(connection, deque()).append(turn)
        self._change(1)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if not turn.cancelled():  # the turn came at the same moment
                self._pass_on()
            elif turn in self._queues.get(connection, ()):
                self._remove(connection, turn)
            if isinstance(error, TimeoutError):
                text = f"others had all turns for {self._wait_s:g} s: try again"
                raise ResourceExhausted(text) from None
            raise

    def _pass_on(self) -> None:
        """Give a turn to the next connection, which then moves to the end of the queue."""
        while self._queues:
            connection, queue = next(iter(self._queues.items()))
            turn = queue[0]
            self._remove(connection, turn)
            if queue:
                self._queues[connection] = self._queues.pop(connection)
            if not turn.done():  # otherwise the call was cancelled, and its `_wait` ends next
                turn.set_result(None)
                return
        self.free += 1

    def _remove(self, connection: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[connection]
        queue.remove(turn)
        if not queue:
            del self._queues[connection]
        self._change(-1)

    def _change(self, by: int) -> None:
        """Change the number of waiting calls, and with it the ends of the turns in use."""
        self._waiting += by
        for end, began in self._begun.items():
            if not end.expired():
                end.reschedule(began + self._allowed_s)

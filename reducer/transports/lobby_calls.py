"""The calls of workers in the lobby (core/lobby.py): one reader and one writer for each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from reduction import wire
from reduction.errors import MalformedFrame, ReductionError
from reduction.limits import LOBBY_REQUEST_BYTES_MAX
from reduction.security.tokens import TokenTable

from reducer.engine import Engine
from reducer.security import check_call, check_lobby
from reducer.transports.turns import Turns

Context = grpc.aio.ServicerContext[bytes, bytes]

#: News of the lobby that come within so many seconds are told together: when a job begins, all of
#: its workers come at once.
PAUSE_S = 0.02


class LobbyCalls:
    """All calls of one server. For the loop's thread.

    Args:
        engine: has the lobby.
        tokens: without them no call needs a token.
        turns: at sending a first message.
        refuse: ends a call with an error.
    """

    def __init__(
        self,
        engine: Engine,
        tokens: TokenTable | None,
        turns: Turns,
        refuse: Callable[[Context, ReductionError], None],
    ) -> None:
        self._lobby = engine.lobby
        self._tokens = tokens
        self._turns = turns
        self._refuse = refuse
        self._numbers = itertools.count(1)
        #: Set when there is news for a call.
        self._news: dict[int, asyncio.Event] = {}

    async def serve(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve a call until the worker ends it."""
        number = next(self._numbers)
        self._news[number] = asyncio.Event()
        writer: asyncio.Task[None] | None = None
        try:
            metadata = tuple(context.invocation_metadata() or ())
            check_call(self._tokens, metadata, context.peer())
            data: Any = await self._turns.read(context, LOBBY_REQUEST_BYTES_MAX)
            while data is not grpc.aio.EOF:
                if len(data) > LOBBY_REQUEST_BYTES_MAX:
                    raise MalformedFrame(
                        f"a LobbyRequest has {len(data)} bytes, allowed are {LOBBY_REQUEST_BYTES_MAX}"
                    )
                request = wire.lobby_request_from_wire(data)
                check_lobby(self._tokens, request.job, metadata, context.peer())
                if writer is None:
                    # grpc.aio would send the headers with the first answer and once more at the end
                    # if this call ended while that answer was being sent, and core refuses that.
                    await context.send_initial_metadata(())
                    writer = asyncio.create_task(self._write(context, number))
                self._tell(self._lobby.on_request(number, request))
                data = await context.read()
        except ReductionError as error:
            self._refuse(context, error)
        finally:
            # Nothing here may wait: gRPC cancels this call when the worker has gone, perhaps twice.
            if writer is not None:
                writer.cancel()
            del self._news[number]
            self._tell(self._lobby.on_end(number, time.monotonic()))

    def _tell(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            if (news := self._news.get(number)) is not None:
                news.set()

    async def _write(self, context: Context, number: int) -> None:
        news = self._news[number]
        while True:
            await news.wait()
            await asyncio.sleep(PAUSE_S)
            news.clear()
            await context.write(wire.lobby_response_to_wire(self._lobby.entries(number)))

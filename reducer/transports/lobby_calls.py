"""The workers' calls to the lobby (core/lobby.py), each with one reader and one writer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
from reduction import wire
from reduction.errors import MalformedFrame, ReductionError
from reduction.limits import LOBBY_REQUEST_BYTES_MAX
from reduction.security.tokens import TokenTable

from reducer.core.fair_shares import NOBODY, account_of
from reducer.engine import Engine
from reducer.security import check_call, check_lobby, peer_of
from reducer.transports.lives import Life
from reducer.transports.turns import Turns

Context = grpc.aio.ServicerContext[bytes, bytes]

#: Seconds for which news of the lobby is collected before it is sent, because all workers of a job arrive
#: together when it begins.
PAUSE_S = 0.02
#: Seconds between the starts of any two answers of the lobby, so that it leaves the CPU to sums. Changes from the
#: workers of large jobs in the meantime are sent together as well.
ANSWER_S = 0.001


class LobbyCalls:
    """All lobby calls of one server. Use it on the loop's thread.

    Args:
        engine: the engine with the lobby.
        tokens: without them no call needs a token.
        turns: turns for sending a first message.
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
        #: Set when a call may be answered.
        self._turns_to_hear: dict[int, asyncio.Event] = {}
        #: Calls with pending news, by job. The first job gets the next answer and then moves to the end.
        self._waiting: dict[str, dict[int, None]] = {}
        self._is_telling = False

    async def serve(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve a call until the worker ends it."""
        number = next(self._numbers)
        self._turns_to_hear[number] = asyncio.Event()
        writer: asyncio.Task[None] | None = None
        account = NOBODY
        life: Life | None = None
        try:
            metadata = tuple(context.invocation_metadata() or ())
            check_call(self._tokens, metadata, peer_of(context))
            data: Any = await self._turns.read(context, LOBBY_REQUEST_BYTES_MAX)
            while data is not grpc.aio.EOF:
                if len(data) > LOBBY_REQUEST_BYTES_MAX:
                    raise MalformedFrame(
                        f"a LobbyRequest has {len(data)} bytes; the limit is {LOBBY_REQUEST_BYTES_MAX}"
                    )
                request = wire.lobby_request_from_wire(data)
                check_lobby(self._tokens, request.job, metadata, peer_of(context))
                if life is None:
                    life = Life(peer_of(context), request.life_port)
                if writer is None:
                    # grpc.aio would send the headers with the first answer and again at the end if this
                    # call ended while that answer was being sent, which gRPC core refuses.
                    await context.send_initial_metadata(())
                    job = request.job
                    account = account_of(job, "" if self._tokens is None else self._tokens.line_of(job))
                    writer = asyncio.create_task(self._write(context, number, account.job))
                self._tell(account.job, self._lobby.on_request(number, request, account, time.monotonic()))
                data = await context.read()
        except ReductionError as error:
            self._refuse(context, error)
        finally:
            # Nothing here may wait, because gRPC cancels this call, perhaps twice, when the worker disconnects.
            if writer is not None:
                writer.cancel()
            del self._turns_to_hear[number]
            self._tell(account.job, self._lobby.on_end(number, time.monotonic()))
            if life is not None:
                life.on_lost(partial(self._on_ended, account.job, request.job, request.nonce))

    def _on_ended(self, payer: str, job: str, nonce: bytes) -> None:
        self._tell(payer, self._lobby.on_ended(job, nonce))

    def _tell(self, job: str, numbers: tuple[int, ...]) -> None:
        if numbers:
            self._waiting.setdefault(job, {}).update(dict.fromkeys(numbers))
            if not self._is_telling:
                self._is_telling = True
                asyncio.get_running_loop().call_later(PAUSE_S, self._tell_next)

    def _tell_next(self) -> None:
        self._is_telling = bool(self._waiting)
        if not self._waiting:
            return
        job = next(iter(self._waiting))
        numbers = self._waiting.pop(job)
        number, _ = numbers.popitem()
        if numbers:
            self._waiting[job] = numbers
        if (turn := self._turns_to_hear.get(number)) is not None:
            turn.set()
        asyncio.get_running_loop().call_later(ANSWER_S, self._tell_next)

    async def _write(self, context: Context, number: int, job: str) -> None:
        turn = self._turns_to_hear[number]
        while True:
            await turn.wait()
            turn.clear()
            news = self._lobby.news(number)
            await context.write(wire.lobby_response_to_wire(news))
            if news.has_more:
                self._tell(job, (number,))

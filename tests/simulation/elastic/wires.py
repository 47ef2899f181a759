"""The network as the product's worker and reducer see it: links of a communicator, and lobby calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
from reduction.client.access import OPEN, Access
from reduction.errors import ReducerUnavailable, ReductionError
from reduction.model import Join, Push
from simulation.elastic.threads import Program, here
from simulation.network import End
from simulation.reducer import SimReducer

from reducer.transports.lobby_calls import LobbyCalls
from reducer.transports.turns import Turns


class Links:
    """A substitute for `worker_plugin.transports.links.Links`."""

    def __init__(self, transport: str, memory: object = None) -> None:
        self.transport, self.access = transport, OPEN
        self.private: dict[str, Access] = {}
        self.addresses: set[tuple[str, int]] = set()
        self.descriptors: list[int] = []
        self.planes = ["simulated"]
        self._process = here.process
        self._ends: dict[int, End] = {}

    def open(self, link: int, address: str, join: Join, owner: Any) -> None:
        self.shut(link)
        end = self._ends[link] = self._process.network.connect(self._process, address)

        def on_frame(frame: object) -> None:
            if self._ends.get(link) is end:
                owner.receive(link, frame)

        def on_lost(error: ReductionError | None) -> None:
            if self._ends.get(link) is end:
                del self._ends[link]
                owner.lose(link, error)

        end.on_frame, end.on_lost = on_frame, on_lost
        end.send(join)

    def send(self, link: int, frame: object) -> None:
        if (end := self._ends.get(link)) is not None:
            end.send(frame)

    def push(self, link: int, push: Push, destination: object) -> None:
        # A payload in flight no longer changes, as with TCP.
        self.send(link, replace(push, payload=memoryview(bytes(push.payload))))

    def shut(self, link: int) -> None:
        if (end := self._ends.pop(link, None)) is not None:
            end.close()

    def forget(self, link: int) -> None:
        """Do nothing: `shut` follows."""

    def divert(self, link: int) -> None:
        """Do nothing: results are only received in frames."""

    def pace(self, link: int, bytes_per_s: int) -> None:
        """Do nothing: the network is fast enough for all."""

    def sent(self) -> dict[int, Any]:
        return {}

    async def close(self) -> None:
        for link in list(self._ends):
            self.shut(link)

    def run(self, work: Coroutine[None, None, None]) -> None:
        asyncio.get_running_loop().create_task(work)


class _Ended:
    """The end of a call, after its last message."""


class _Messages:
    """The messages that one end of a connection receives, for a coroutine."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._come: asyncio.Queue[Any] = asyncio.Queue()
        end.on_frame = self._come.put_nowait
        end.on_lost = lambda error: self._come.put_nowait(error or _Ended())

    async def write(self, data: bytes) -> None:
        self.end.send(data)

    async def read(self) -> Any:
        message = await self._come.get()
        return grpc.aio.EOF if isinstance(message, _Ended) else message


class Endpoint:
    """A substitute for `GrpcEndpoint`, for lobby calls."""

    def __init__(self, address: str, access: Access) -> None:
        self.address, self.access = address, access
        self._error: ReductionError | None = None

    def channel(self) -> Endpoint:
        return self

    def stream_stream(self, method: str) -> Callable[..., _Call]:
        return lambda metadata: _Call(self)

    def fail(self, error: ReductionError) -> grpc.aio.AioRpcError:
        self._error = error
        return grpc.aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), str(error)
        )

    async def reason(self, code: object, details: object, *, is_silent: bool) -> ReductionError:
        return self._error or ReducerUnavailable(str(details))

    async def close(self) -> None:
        """Do nothing: its calls have ended."""


class _Call(_Messages):
    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(here.process.network.connect(here.process, endpoint.address))
        self._endpoint = endpoint
        self._connected = asyncio.Event()
        self.end.on_open = self._connected.set

    async def wait_for_connection(self) -> None:
        await self._connected.wait()

    def cancel(self) -> None:
        self.end.close()

    async def done_writing(self) -> None:
        self.end.send(_Ended())

    def __aiter__(self) -> _Call:
        return self

    async def __anext__(self) -> bytes:
        message = await self.read()
        if isinstance(message, ReductionError):
            raise self._endpoint.fail(message)
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


class _Context(_Messages):
    """The context of a call at a reducer."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return self.end.peer.process.host

    async def send_initial_metadata(self, _: object) -> None:
        """Do nothing: no test looks at the metadata."""


#: The reducer and the end of the call that is being served.
_CALL: ContextVar[tuple[SimReducer, End]] = ContextVar("call")


class Life:
    """A substitute for `lives.Life`, for lobby calls."""

    def __init__(self, peer: str, port: int) -> None:
        self._reducer, self._end = _CALL.get()

    def on_lost(self, on_ended: Callable[[], None]) -> None:
        self._reducer.look_after(self._end, on_ended)


class LobbyReducer(SimReducer, Program):
    """A reducer with the real lobby behind its listener."""

    def __init__(self, *arguments: Any) -> None:
        turns = Turns(4, 1024, wait_s=5.0, use_s=5.0, hurry_s=1.0)
        super().__init__(*arguments)
        self._calls = LobbyCalls(self.engine, None, turns, lambda context, error: context.end.send(error))

    def _accept(self, end: End) -> None:
        """Determine the purpose of a connection from its first frame."""
        taken: list[SimpleNamespace] = []

        def on_frame(frame: object) -> None:
            if not taken:
                # The code that takes over the connection sets its handlers for frames and its end.
                taken.append(SimpleNamespace())
                if isinstance(frame, bytes):
                    self._hear(end)
                else:
                    SimReducer._accept(self, end)
                taken[0].on_frame, taken[0].on_lost = end.on_frame, end.on_lost
                end.on_frame, end.on_lost = on_frame, on_lost
            taken[0].on_frame(frame)

        def on_lost(error: ReductionError | None) -> None:
            if taken:
                taken[0].on_lost(error)

        end.on_frame, end.on_lost = on_frame, on_lost

    def _hear(self, end: End) -> None:
        """Serve a lobby call; like gRPC, cancel it when the worker disconnects."""
        context = _Context(end)
        _CALL.set((self, end))
        task = asyncio.get_running_loop().create_task(self._calls.serve(None, context))
        end.on_lost = lambda error: task.cancel()
        task.add_done_callback(lambda _: end.close())

    def leftovers(self) -> list[str]:
        lobby = self.engine.lobby
        counts = {"rooms": len(lobby._rooms), "calls": len(lobby._streams), "bytes": lobby.shares.taken}
        left = [f"{self.address}: {count} {what} of the lobby" for what, count in counts.items() if count]
        return super().leftovers() + left

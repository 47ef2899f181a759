"""The streams of a rank, one per reducer: opening, sending, ending, and their descriptors for `fork`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol

from reduction.client.access import OPEN, Access
from reduction.client.grpc_client import GrpcEndpoint, peers_of
from reduction.client.tcp_client import TcpEndpoint
from reduction.errors import ReducerUnavailable, ReductionError
from reduction.model import Join, Push, ReducerFrame, WorkerFrame
from reduction.pacing import Sent
from reduction.process import descriptors
from reduction.transports.grpc_sockets import GrpcSockets
from reduction.transports.interface import RemoteEndpoint, RemoteStream
from reduction.transports.shared import OWN_REGIONS_MAX, OwnMemory

from worker_plugin.transports.destinations import Destinations
from worker_plugin.transports.unopened import UnopenedEndpoint

#: File descriptors of one link: one connection per plane.
DESCRIPTORS_PER_LINK = 2
#: File descriptors of gRPC and the loop, regardless of the number of links; 6 were observed.
DESCRIPTORS_OF_OURS = 8
#: File descriptors left free for dialling and for the training script.
DESCRIPTORS_SPARE = 32
#: How many reducers on this host may show the maximum number of regions. More would need more descriptors.
REDUCERS_NEAR_MAX = 8
#: How long streams may take to send their last frames, in seconds.
LINGER_S = 2.0


class LinkOwner(Protocol):
    """Receives what arrives on the links. Called on the loop's thread."""

    def receive(self, link: int, frame: ReducerFrame) -> None:
        """Receive a frame of a link's present stream."""

    def lose(self, link: int, error: ReductionError | None) -> None:
        """Record that a link's present stream has ended."""


class _LinkSink:
    """The sink of one stream of a link. It ignores everything once the link has a newer stream."""

    def __init__(self, links: Links, link: int, owner: LinkOwner) -> None:
        self._links = links
        self._link = link
        self._owner = owner
        self.destinations = Destinations()
        self.destination = self.destinations.take

    def on_frame(self, frame: ReducerFrame) -> None:
        """Hand a frame to the owner."""
        if self._links.is_present(self._link, self):
            self._owner.receive(self._link, frame)

    def on_closed(self, error: ReductionError | None) -> None:
        """Tell the owner that the stream has ended."""
        if self._links.is_present(self._link, self):
            self._links.forget(self._link)
            self._owner.lose(self._link, error)


class Links:
    """All streams of one communicator. For the loop thread only, except `addresses` and `descriptors`."""

    def __init__(self, transport: str, memory: OwnMemory | None = None) -> None:
        self.transport = transport
        #: Holds the contributions; reducers on this host may read them there.
        self.memory = memory
        #: The certificate and token presented to reducers.
        self.access = OPEN
        #: By address: the credentials presented to that reducer instead.
        self.private: dict[str, Access] = {}
        #: Addresses that gRPC's sockets may be connected to, by which `fork` finds the sockets.
        self.addresses: set[tuple[str, int]] = set()
        self._endpoints: dict[int, RemoteEndpoint] = {}
        self._streams: dict[int, RemoteStream] = {}
        #: gRPC's sockets, for streams without a data connection.
        self._sockets: dict[int, GrpcSockets] = {}
        #: Number of descriptors the process had open before the first link.
        self._others = 0
        #: The sink of each link's present stream; none once it has ended. Only the sinks refer to a `LinkOwner`, which
        #: refers to us. That cycle must end with `close`, not when the garbage collector runs.
        self._sinks: dict[int, _LinkSink] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the open data connections."""
        numbers = [stream.descriptor for stream in self._streams.values()]
        return [number for number in numbers if number >= 0]

    @property
    def planes(self) -> list[str]:
        """The names of the planes that the open streams use."""
        streams = [stream for link, stream in self._streams.items() if link in self._sinks]
        found = {stream.plane or self._grpc for stream in streams}
        return sorted(found, reverse=True)

    @property
    def _grpc(self) -> str:
        return "grpc" if self.access.tls is None else "grpc with TLS"

    def sent(self) -> dict[int, Sent]:
        """Return what each link's data connection has sent so far, where that is known."""
        answers = ((link, self._paced(link).sent) for link in self._streams)
        return {link: sent for link, sent in answers if sent is not None}

    def pace(self, link: int, bytes_per_s: int) -> None:
        """Limit the link's stream to this many bytes per second."""
        self._paced(link).pace(bytes_per_s)

    def _paced(self, link: int) -> RemoteStream | GrpcSockets:
        """Return the part of a link that can be paced: its data connection, or the socket of gRPC."""
        stream = self._streams[link]
        return stream if stream.plane else self._sockets[link]

    def accesses(self) -> dict[str, Access]:
        """Return the credentials for each reducer, by its address."""
        addresses = [endpoint.address for endpoint in self._endpoints.values()]
        return {address: self.private.get(address, self.access) for address in addresses}

    def open(self, link: int, address: str, join: Join, owner: LinkOwner) -> None:
        """Open a new stream and send Join on it. Data that still arrives on the link's previous stream is ignored."""
        endpoint = self._endpoints.get(link)
        if endpoint is not None and endpoint.address != address:  # it belonged to a sibling that is gone
            self.run(endpoint.close())
            endpoint = None
        if endpoint is None or isinstance(endpoint, UnopenedEndpoint):
            endpoint = self._endpoints[link] = self._endpoint(address, len(self._endpoints.keys() | {link}))
        if link in self._sinks:
            self.forget(link)
        sink = self._sinks[link] = _LinkSink(self, link, owner)
        stream = self._streams[link] = endpoint.open(sink)
        stream.send(join)
        peers: set[tuple[str, int]] = set()
        self._sockets[link] = GrpcSockets(peers)
        self.run(self._remember(address, peers))

    def send(self, link: int, frame: WorkerFrame) -> None:
        """Send on the link's stream."""
        self._streams[link].send(frame)

    def push(self, link: int, push: Push, destination: memoryview | None) -> None:
        """Send a push on the link's stream.

        Args:
            link: a link with a stream.
            push: its payload must not change until its result has arrived.
            destination: memory for its result, if the result should be received there; writable until `divert` or
                `shut`.
        """
        if (sink := self._sinks.get(link)) is not None:
            sink.destinations.expect(push.epoch, push.seq, push.chunk, destination)
        self._streams[link].send(push)

    def divert(self, link: int) -> None:
        """Stop receiving in the destinations of the pushes so far, because their epoch has ended."""
        if (sink := self._sinks.get(link)) is not None:
            sink.destinations.clear()
        self._streams[link].divert()

    def shut(self, link: int) -> None:
        """End the link's stream after everything sent so far. No destination is written to after this."""
        self._streams[link].close()

    def is_present(self, link: int, sink: _LinkSink) -> bool:
        """Return whether the sink belongs to the link's present stream."""
        return self._sinks.get(link) is sink

    def forget(self, link: int) -> None:
        """Stop listening to the link's stream, and release its destinations."""
        self._sinks.pop(link).destinations.clear()

    async def close(self) -> None:
        """End all streams, and then the connections."""
        for stream in self._streams.values():
            stream.close()
        if self._streams:
            waits = [asyncio.create_task(stream.wait_closed()) for stream in self._streams.values()]
            await asyncio.wait(waits, timeout=LINGER_S)
        for endpoint in self._endpoints.values():
            await endpoint.close()
        # gRPC keeps a connection open while anything refers to a call or channel.
        self._streams.clear()
        self._endpoints.clear()
        self._sinks.clear()
        if self.memory is not None:
            self.memory.close()

    def _endpoint(self, address: str, count: int) -> RemoteEndpoint:
        """Return an endpoint, which is the `count`-th one."""
        if count == 1:
            self._others = descriptors.in_use()
        needed = self._others + DESCRIPTORS_OF_OURS + DESCRIPTORS_PER_LINK * count
        regions = OWN_REGIONS_MAX * (2 + min(count, REDUCERS_NEAR_MAX)) if self.memory is not None else 0
        allowed = descriptors.allow(needed + DESCRIPTORS_SPARE + regions)
        if allowed < needed:
            text = f"this process may have {allowed} descriptors, and needs {needed} for {count} links"
            return UnopenedEndpoint(address, ReducerUnavailable(f"{text}: raise its hard limit (ulimit -Hn)"))
        access = self.private.get(address, self.access)
        if self.transport == "grpc":
            return GrpcEndpoint(address, access)
        return TcpEndpoint(address, is_required=self.transport == "tcp", access=access, memory=self.memory)

    async def _remember(self, address: str, peers: set[tuple[str, int]]) -> None:
        peers |= await peers_of(address)
        self.addresses |= peers

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background. The set keeps a reference, since the loop alone may lose a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

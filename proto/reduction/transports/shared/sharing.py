"""Shared memory of both sides of a connection within a host.

A payload in a region is not sent. PLACE_BYTES that say where it is are sent instead. A SHOW message with
the region's descriptor precedes the first of these, and a HIDE follows when the region has ended, so
that the peer can release it too.
"""

from __future__ import annotations

import struct

import numpy as np

from reduction.errors import MalformedFrame
from reduction.limits import CHUNK_BYTES_MAX
from reduction.transports.shared.own import OwnMemory
from reduction.transports.shared.peer import PeerMemory
from reduction.transports.tcp.connection import Connection
from reduction.transports.tcp.messages import HIDE, IS_PLACE, SHOW, Header, region_header

#: Region, bytes, offset.
_PLACE = struct.Struct("<IIQ")
PLACE_BYTES = _PLACE.size


def address_of(payload: memoryview) -> int:
    """Return the address of bytes in this process."""
    address: int = np.frombuffer(payload, np.uint8).__array_interface__["data"][0]
    return address


def copy(payload: memoryview, to: memoryview) -> None:
    """Copy a payload of the peer to memory of the same size that only this process writes to."""
    # numpy releases the GIL for this; a memoryview would not.
    np.copyto(np.frombuffer(to, np.uint8), np.frombuffer(payload, np.uint8))


class Sharing:
    """The shared memory of both sides of a connection. Use it on the loop's thread."""

    def __init__(self, connection: Connection, own: OwnMemory, peer: PeerMemory | None = None) -> None:
        self._connection = connection
        self._own = own
        self._peer = PeerMemory() if peer is None else peer
        #: The regions that the peer knows.
        self._shown: set[int] = set()
        self._generation = own.generation

    def place(self, payload: memoryview) -> bytes | None:
        """Return the place of a payload for the peer; None if it has to be sent."""
        if self._generation != self._own.generation:
            self._hide()
        found = self._own.find(address_of(payload)) if payload else None
        if found is None:
            return None
        region, offset = found
        if region.number not in self._shown:
            self._shown.add(region.number)
            self._connection.send_descriptor(region_header(SHOW, region.number), region)
        return _PLACE.pack(region.number, payload.nbytes, offset)

    def memory_for(self, header: Header) -> memoryview | None:
        """Return memory for the data after a header that is specific to shared memory; None for other headers.

        Raises:
            MalformedFrame: the length is wrong for this header.
        """
        if header.kind not in (SHOW, HIDE) and not header.flags & IS_PLACE:
            return None
        allowed = PLACE_BYTES if header.flags & IS_PLACE else 0
        if header.length != allowed:
            raise MalformedFrame(f"{header.length} bytes follow instead of {allowed}")
        return memoryview(bytearray(allowed))

    def payload(self, place: memoryview) -> memoryview:
        """Return the payload at the place that the peer has sent.

        Raises:
            MalformedFrame: the payload is too long, or is not there.
        """
        number, nbytes, offset = _PLACE.unpack(place)
        if nbytes > CHUNK_BYTES_MAX:
            raise MalformedFrame(f"length of a shared payload is {nbytes}; allowed: 0 to {CHUNK_BYTES_MAX}")
        return self._peer.view(number, offset, nbytes)

    def on_message(self, header: Header) -> None:
        """Take a SHOW or a HIDE.

        Raises:
            MalformedFrame: the region may not be used.
            CannotShare: this process has no descriptor or address space left.
        """
        if header.kind == SHOW:
            self._peer.add(header.chunk, self._connection.take_descriptor())
        else:
            self._peer.forget(header.chunk)

    def _hide(self) -> None:
        self._generation = self._own.generation
        for number in [number for number in self._shown if not self._own.has(number)]:
            self._shown.discard(number)
            self._connection.send(region_header(HIDE, number), b"")

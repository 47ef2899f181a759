"""A relay that holds, delays, trickles, truncates or repeats traffic in each direction, as broken middleboxes do."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from support.network.relays import Way, reset

#: Bytes per read. Faults at a certain byte are exact for any value.
_PIECE_BYTES = 1 << 16
#: Interval between the drips of a trickle, in seconds.
_DRIP_S = 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    """Faults of one direction's bytes from now on, counted over all connections together."""

    #: Whether bytes are held back. They are lost if the relay is cut meanwhile.
    holds: bool = False
    #: Seconds by which all bytes are delayed.
    delay_s: float = 0.0
    #: The most bytes per second, forwarded a few at a time. None is no limit.
    bytes_per_s: int | None = None
    #: After this many bytes their connection is reset in both directions. Then the fault is over.
    truncate_after: int | None = None
    #: After this many bytes the same bytes are sent again, as by a box that lost count. Then the fault is over.
    repeat_first: int | None = None
    #: After this many bytes one bit of the next byte is flipped. Then the fault is over.
    flip_at: int | None = None

    @property
    def border(self) -> int | None:
        """Return the byte at which the one-time fault happens."""
        return next(
            (at for at in (self.truncate_after, self.repeat_first, self.flip_at) if at is not None), None
        )


NO_FAULT = Fault()


class _Direction:
    """One direction of all connections."""

    def __init__(self) -> None:
        self.fault = NO_FAULT
        #: Bytes since the fault was set, as many as `repeat_first` needs.
        self.seen = bytearray()
        self.count = 0
        #: Number of truncations and repetitions carried out.
        self.struck = 0
        self.passes = asyncio.Event()
        self.passes.set()


class FaultyRelay(Way):
    """Forwards everything to another port, both ways, with faults.

    Args:
        target_port: on 127.0.0.1.
        host: to listen on. With 127.0.0.2 and so on, a data port can have the number that its reducer advertises.
        port: to listen on; 0 picks a free one.
    """

    def __init__(self, target_port: int, host: str = "127.0.0.1", port: int = 0) -> None:
        self._target_port = target_port
        self._up, self._down = _Direction(), _Direction()
        super().__init__(host, port)

    def set(self, *, up: Fault = NO_FAULT, down: Fault = NO_FAULT) -> None:
        """Set the faults from now on: `up` to the target, `down` back from it."""

        async def change() -> None:
            for direction, fault in ((self._up, up), (self._down, down)):
                direction.fault, direction.count = fault, 0
                direction.seen.clear()
                if fault.holds:
                    direction.passes.clear()
                else:
                    direction.passes.set()

        self._there(change())

    def reset(self) -> None:
        """Reset all connections, including held bytes, and keep accepting new ones."""

        async def end() -> None:
            for writer in self._writers:
                reset(writer)
            self._writers.clear()

        self._there(end())

    @property
    def struck(self) -> int:
        """Return the number of truncations, repetitions and flipped bits."""
        return self._up.struck + self._down.struck

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # a relay can no longer refuse
            reset(writer)
            return
        self._writers.append(back)
        ways = [
            asyncio.create_task(self._pass_on(reader, back, self._up)),
            asyncio.create_task(self._pass_on(there, writer, self._down)),
        ]
        try:
            # If one direction breaks, the other ends too. An end without error leaves the other direction open.
            await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
            if any(way.done() and way.exception() is not None for way in ways):
                for end in (writer, back):
                    reset(end)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: _Direction
    ) -> None:
        while data := await reader.read(_PIECE_BYTES):
            await self._write(writer, direction, data)
        with contextlib.suppress(OSError):
            writer.write_eof()

    @staticmethod
    async def _write(writer: asyncio.StreamWriter, direction: _Direction, data: bytes) -> None:
        while data:
            await direction.passes.wait()
            fault = direction.fault
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            take = len(data)
            if fault.bytes_per_s is not None:
                await asyncio.sleep(_DRIP_S)
                take = max(1, int(fault.bytes_per_s * _DRIP_S))
            border = fault.border
            if fault.flip_at == direction.count:
                data = bytes([data[0] ^ 0x10]) + data[1:]
                border, direction.fault = None, NO_FAULT
                direction.struck += 1
            if border is not None:
                take = min(take, border - direction.count)
            piece, data = data[:take], data[take:]
            direction.count += len(piece)
            if fault.repeat_first is not None:
                direction.seen += piece
            writer.write(piece)
            await writer.drain()
            if fault.flip_at is None and border is not None and direction.count == border:
                direction.fault = NO_FAULT
                direction.struck += 1
                if fault.truncate_after is not None:
                    raise ConnectionResetError("truncated, as it was told")
                writer.write(bytes(direction.seen))
                await writer.drain()

"""The I/O process: the driver, the core and the streams of one rank, whose tensors are in another process.

It ends when the channel on its stdin ends, however the rank's process ends. It never encodes or decodes:
contributions arrive encoded, and results stay encoded.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import uvloop
from numpy.typing import NDArray
from reduction.codecs import BLOCK_CODECS
from reduction.errors import ClosedError, ReductionError
from reduction.model import Collective
from reduction.shortage import failure_of, shortage
from reduction.transports.shared import OwnMemory

from worker_plugin.communicator import CLOSED
from worker_plugin.core.events import Broke
from worker_plugin.driver import Driver
from worker_plugin.io_process import messages
from worker_plugin.io_process.channel import Channel
from worker_plugin.process import log_setup
from worker_plugin.tensors.encoding import Encoding
from worker_plugin.tensors.futures import make_future
from worker_plugin.tensors.transfer import Transfer
from worker_plugin.timeline.recorder import Recorder

log = logging.getLogger(__name__)

#: Seconds between checks whether the rank's process has taken the last messages, and the number of checks.
_FLUSH_S, _FLUSH_TIMES = 0.01, 200
#: How long, in seconds, to delay telling the rank that a contribution's memory is free, if no result comes.
_RELEASE_S = 0.02
#: Stand-in for the tensor of a collective, which is in the rank's process.
_NO_TENSOR = torch.empty(0, dtype=torch.uint8)


class Encoded(Encoding):
    """A contribution that is already encoded.

    Args:
        collective: must not be empty.
        contribution_bytes: total bytes of the contribution.
    """

    def __init__(self, collective: Collective, contribution_bytes: int) -> None:
        super().__init__(_NO_TENSOR)
        self._format = collective.dtype.format
        self._codec = BLOCK_CODECS.get(collective.dtype)
        self._block_bytes = contribution_bytes // max(1, self._format.blocks(collective.nbytes))

    def where(self, start: int, stop: int) -> tuple[int, int]:
        """See `Encoding.where`."""
        return self._format.blocks(start) * self._block_bytes, self._format.blocks(stop) * self._block_bytes

    def encode(self, start: int, stop: int, out: memoryview) -> None:
        """Do nothing, because the contribution is already encoded."""

    def store(self, start: int, stop: int, payload: memoryview, out: NDArray[np.uint8]) -> None:
        """See `Encoding.store`."""
        if self._codec is None:
            super().store(start, stop, payload, out)
        else:
            begin, end = self._format.result_bytes(start), self._format.result_bytes(stop)
            self._codec.expand(payload, out[begin:end])


class _RemoteRecorder(Recorder):
    """Forwards the records that belong to no particular collective."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(None)
        self._channel = channel

    def on_open(self, link: int, address: str) -> None:
        """See `Recorder.on_open`."""
        super().on_open(link, address)
        self._channel.send("opened", link, address)

    def note(self, text: str) -> None:
        """See `Recorder.note`."""
        self._channel.send("note", text[: messages.TEXT_MAX])


class _RemoteLog(logging.Handler):
    """Forwards log lines, so that they reach the handlers of the training script."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        try:
            text = self.format(record)[: messages.TEXT_MAX]
            self._channel.send("log", record.name, record.levelno, text)
        except Exception:
            self.handleError(record)


class IoProcess:
    """The other end of a `RemoteDriver`. To the driver it is both the owner and the copying threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.channel = Channel(sock, self._loop, self._on_message, self._on_end)
        self._memory = OwnMemory()
        #: The rank's memory, by the numbers of its regions.
        self._regions: dict[int, NDArray[np.uint8]] = {}
        #: A collective whose contribution the rank has yet to send, and the messages received after it.
        self._awaited: Transfer | None = None
        self._later: deque[tuple[list[Any], int]] = deque()
        #: The collectives whose results have to be sent to the rank.
        self._apart: set[int] = set()
        self._has_failed = False
        #: Whether it has been logged that memory could not be mapped.
        self._is_short = False
        #: Released collectives that the rank has not been told about yet.
        self._released: list[int] = []
        self._recorder = _RemoteRecorder(self.channel)
        self._driver = Driver(self, self, self._recorder, self._memory)
        self._begun: asyncio.Future[dict[str, Any]] = self._loop.create_future()

    async def run(self) -> None:
        """Do what the rank requests until its communicator has ended."""
        self.channel.start()
        begun = await self._begun
        try:
            start = messages.start_from_json(begun)
        except ReductionError as error:
            self._driver.end(error)
        else:
            await self._driver.run(start)
        self.channel.send("over")
        for _ in range(_FLUSH_TIMES):
            if self.channel.is_flushed:
                return
            await asyncio.sleep(_FLUSH_S)

    # ---- messages ----

    def _on_message(self, message: list[Any], descriptor: int) -> None:
        if self._awaited is not None and message[0] != "bytes":
            self._later.append((message, descriptor))
            return
        match message:
            case ["issue", seq, collective, contribution, result]:
                self._issue(seq, messages.collective_from_json(collective), contribution, result)
            case ["bytes", _, offset, piece]:
                self._on_piece(offset, piece)
            case ["region", number]:
                self._adopt(number, descriptor)
            case ["forget", number]:
                self._regions.pop(number, None)
            case ["event", *event]:
                self._driver.handle(messages.event_from_json(event))
            case ["fell_back", address, access]:
                self._driver.fell_back(address, messages.access_from_json(access))
            case ["begin", start]:
                self._begun.set_result(start)
            case _:
                raise ValueError(f"unknown message {message}")

    def _on_end(self, error: Exception | None) -> None:
        # The rank's process has ended or given up. The connections end with this process.
        os._exit(0 if error is None else 1)

    def _issue(self, seq: int, collective: Collective, contribution: list[int], result: list[int]) -> None:
        progress = self._recorder.begin(seq, collective)
        encoding = Encoded(collective, contribution[2])
        transfer = Transfer(seq, collective, _NO_TENSOR, encoding, make_future(_NO_TENSOR), progress, None)
        is_there, is_shared = (
            not nbytes or region in self._regions for region, _, nbytes in (contribution, result)
        )
        try:
            transfer.own(self._bytes(*contribution))
            transfer.take_result(self._bytes(*result))
        except MemoryError as error:
            self._driver.handle(
                Broke(failure_of(f"the I/O process has no memory for collective {seq}", error))
            )
            return
        if not is_shared:
            self._apart.add(seq)
        if is_there or self._has_failed:
            self._driver.issue(transfer)
        else:
            self._awaited = transfer
            self.channel.send("need", seq)

    def _bytes(self, region: int, offset: int, nbytes: int) -> torch.Tensor:
        if not nbytes:
            return _NO_TENSOR
        shared = self._regions.get(region)
        return torch.from_numpy(
            np.empty(nbytes, np.uint8) if shared is None else shared[offset : offset + nbytes]
        )

    def _adopt(self, number: int, descriptor: int) -> None:
        """Map memory of the rank. If that is not possible, its contents are sent."""
        try:
            self._regions[number] = self._memory.adopt(descriptor)
        except OSError as error:
            if not self._is_short:
                self._is_short = True
                reason = shortage(error if descriptor >= 0 else OSError(errno.EMFILE, "")) or error
                log.warning("the I/O process cannot map its rank's memory, so it is sent instead: %s", reason)

    def _on_piece(self, offset: int, piece: bytes) -> None:
        """Take a part of the awaited contribution; after the last one, process the messages received since."""
        assert self._awaited is not None
        contribution = self._awaited.contribution_bytes
        contribution[offset : offset + len(piece)] = piece
        if offset + len(piece) < len(contribution):
            return
        transfer, self._awaited = self._awaited, None
        self._driver.issue(transfer)
        while self._later and self._awaited is None:
            self._on_message(*self._later.popleft())

    # ---- as `Copies`, for the driver ----

    def begin(self, transfer: Transfer) -> None:
        """Leave the contribution as the rank has made it."""

    def prepare_result(self, transfer: Transfer) -> None:
        """Leave the memory for the result, which the rank has chosen."""

    def deliver(self, transfer: Transfer) -> None:
        """Make the rank copy the result."""
        if transfer.seq in self._apart:
            self._apart.discard(transfer.seq)
            self.channel.send_bytes(transfer.seq, transfer.result_bytes)
        released, self._released = self._released, []
        self.channel.send("whole", transfer.seq, messages.progress_to_json(transfer.progress), released)

    def release(self, transfer: Transfer) -> None:
        """Let the rank reuse the contribution's memory."""
        # Each message costs the rank's process a turn with its GIL, so this waits briefly for a result to go along
        # with.
        self._released.append(transfer.seq)
        if len(self._released) == 1:
            self._loop.call_later(_RELEASE_S, self._tell_released)

    def fail(self, transfer: Transfer, error: Exception) -> None:
        """Tell the rank how far the collective had got. The rank fails it because of `on_failed`."""
        self.channel.send("unfinished", transfer.seq, messages.progress_to_json(transfer.progress))

    def _tell_released(self) -> None:
        if self._released:
            self.channel.send("released", self._released)
            self._released = []

    # ---- as `DriverOwner` ----

    @property
    def final(self) -> ReductionError:
        """See `DriverOwner.final`."""
        return ClosedError(CLOSED)

    def on_started(self, reducers: tuple[str, ...], planes: Sequence[str]) -> None:
        """See `DriverOwner.on_started`."""
        self.channel.send("began", reducers, planes)

    def on_failed(self, error: ReductionError) -> ReductionError:
        """See `DriverOwner.on_failed`."""
        self._has_failed = True
        self.channel.send("failed", messages.error_to_json(error))
        return error

    def fall_back(self) -> None:
        """See `DriverOwner.fall_back`."""
        self.channel.send("fall_back")


async def _main() -> None:
    io_process = IoProcess(socket.socket(fileno=os.dup(sys.stdin.fileno())))
    handler = _RemoteLog(io_process.channel)
    for name in log_setup.NAMES:
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).propagate = False
    await io_process.run()


def main() -> None:
    """Run the I/O process of a rank, whose channel is stdin."""
    uvloop.run(_main())
    os._exit(0)  # everything has been sent, and gRPC's threads need not be waited for

"""`RemoteDriver`: stands in for the driver in a rank's process if the I/O is in a separate process.

The thread that issues a collective encodes it immediately and as a whole, into memory that the I/O process
pushes from. So a thread that holds the GIL cannot delay it: after that, only results need the GIL, once or
twice per collective. Encoding is here because the residuals and tensors are.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from reduction.client.access import Access
from reduction.errors import LocalProtocolError, ReductionError, ResourceExhausted, WorkerFailed
from reduction.process import descriptors
from reduction.process.launch import io_process_command
from reduction.shortage import failure_of, shortage
from reduction.transports.shared import OWN_REGIONS_MAX, OwnMemory

from worker_plugin.core.events import Broke, Event
from worker_plugin.driver import DriverOwner, Start
from worker_plugin.io_process import messages
from worker_plugin.io_process.channel import Channel
from worker_plugin.process.io_loop import io_loop
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.transfer import Transfer
from worker_plugin.timeline.recorder import Recorder

log = logging.getLogger(__name__)

#: How long after it is done the process may run before it is killed, in seconds.
STOP_S = 3.0
#: File descriptors per region: its own, and another one kept by Python's mmap.
_DESCRIPTORS_PER_REGION = 2
#: File descriptors left free for the training script.
_DESCRIPTORS_SPARE = 64


class RemoteDriver:
    """Has the methods of `Driver`; see there. For the loop's thread, except `take`.

    Args:
        owner: notified of the start and of failures, until `release`.
        staging: its memory is lent (`OwnMemory`).
        recorder: records the times of events.
        memory: that of the staging's pool.

    Raises:
        ResourceExhausted: no descriptor, process or memory is left for it.
        WorkerFailed: the process cannot be started.
    """

    def __init__(self, owner: DriverOwner, staging: Staging, recorder: Recorder, memory: OwnMemory) -> None:
        self._owner = owner
        self._staging = staging
        self._recorder = recorder
        self._memory = memory
        #: The regions known to the I/O process.
        self._shown: set[int] = set()
        self._generation = memory.generation
        #: Whether it has been logged that memory could not be shared.
        self._is_short = False
        #: The collectives that have not been released, by number.
        self._transfers: dict[int, Transfer] = {}
        self._failure: ReductionError | None = None
        self._who = "this rank"
        self._over = asyncio.Event()
        self._gone = asyncio.Event()
        loop = io_loop()
        descriptors.allow(
            descriptors.in_use() + _DESCRIPTORS_PER_REGION * OWN_REGIONS_MAX + _DESCRIPTORS_SPARE
        )
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = _started(theirs)
        except OSError as error:
            what = "the I/O process of a rank cannot be started"
            if reason := shortage(error):
                raise ResourceExhausted(f"{what}: {reason}") from error
            raise WorkerFailed(f"{what}: {error}") from error
        self._channel = Channel(ours, loop, self._on_message, self._on_end)
        loop.call_soon_threadsafe(self._channel.start)

    @property
    def is_over(self) -> bool:
        """Whether the communicator has ended."""
        return self._over.is_set()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `fork.DescriptorOwner`. A child that kept the channel would keep the I/O process alive."""
        return set(), self._channel.descriptors

    async def run(self, start: Start) -> None:
        """Let the process drive the core until the communicator and the process have ended."""
        self._who = f"rank {start.identity.rank}"
        self._channel.send("begin", messages.start_to_json(start))
        await self._over.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._gone.wait()
        self._end_process()

    def take(self, transfer: Transfer) -> None:
        """Encode a collective and have it issued after those taken before. For one thread at a time."""
        transfer.progress.taken = time.monotonic()
        self._transfers[transfer.seq] = transfer
        try:
            self._staging.begin(transfer)
            self._staging.prepare_result(transfer)
            transfer.payload(0, transfer.collective.nbytes)
            transfer.encoding.close()
            assert transfer.contribution is not None
            assert transfer.result is not None
            places = self._place(transfer.contribution), self._place(transfer.result)
        except Exception as error:  # possibly out of memory
            failure = failure_of(f"collective {transfer.seq} could not be copied", error)
            if isinstance(failure, LocalProtocolError):
                log.exception("a collective could not be copied")
            io_loop().call_soon_threadsafe(self.handle, Broke(failure))
            return
        self._channel.send("issue", transfer.seq, messages.collective_to_json(transfer.collective), *places)

    def handle(self, event: Event) -> None:
        """Hand an event to the core."""
        self._channel.send("event", *messages.event_to_json(event))

    def fell_back(self, address: str, access: Access) -> None:
        """See `Driver.fell_back`."""
        self._channel.send("fell_back", address, messages.access_to_json(access))

    def end(self, error: ReductionError) -> None:
        """Fail without telling the other ranks, because they have not been met."""
        self._fail(error)
        self._over.set()
        self._end_process()

    def release(self) -> None:
        """Fail late collectives, and free the contributions. Nothing is taken after this."""
        for transfer in self._transfers.values():
            self._staging.fail(transfer, self._failure or self._owner.final)
        self._transfers.clear()
        del self._owner  # it refers to this object: a cycle

    def _place(self, buffer: torch.Tensor) -> tuple[int, int, int]:
        """Return region, offset and bytes of a buffer, after announcing the region; region 0 if it has none."""
        if not buffer.nbytes:
            return 0, 0, 0
        if self._generation != self._memory.generation:
            self._generation = self._memory.generation
            for number in [number for number in self._shown if not self._memory.has(number)]:
                self._shown.discard(number)
                self._channel.send("forget", number)
        found = self._memory.find(buffer.data_ptr())
        if found is None:
            if not self._is_short:
                self._is_short = True
                reason = self._memory.refusal or f"a process has at most {OWN_REGIONS_MAX} regions"
                log.warning("memory cannot be shared with the I/O process, so it is sent there: %s", reason)
            return 0, 0, buffer.nbytes
        region, offset = found
        if region.number not in self._shown:
            self._shown.add(region.number)
            self._channel.send("region", region.number, described=region)
        return region.number, offset, buffer.nbytes

    # ---- messages ----

    def _on_message(self, message: list[Any], descriptor: int) -> None:
        match message:
            case ["need", seq]:
                self._channel.send_bytes(seq, self._transfers[seq].contribution_bytes)
            case ["bytes", seq, offset, piece]:
                if (transfer := self._transfers.get(seq)) is not None:
                    transfer.result_bytes[offset : offset + len(piece)] = piece
            case ["whole", seq, progress, released]:
                if (transfer := self._transfers.get(seq)) is not None:
                    messages.fill(transfer.progress, progress)
                    self._staging.deliver(transfer)
                self._release(released)
            case ["released", released]:
                self._release(released)
            case ["unfinished", seq, progress]:
                if (transfer := self._transfers.get(seq)) is not None:
                    messages.fill(transfer.progress, progress)
            case ["failed", error]:
                self._fail(messages.error_from_json(error))
            case ["opened", link, address]:
                self._recorder.on_open(link, address)
            case ["began", reducers, planes]:
                self._owner.on_started(tuple(reducers), planes)
            case ["fall_back"]:
                self._owner.fall_back()
            case ["note", text]:
                self._recorder.note(text)
            case ["log", name, level, text]:
                logging.getLogger(name).log(level, "%s", text)
            case ["over"]:
                self._over.set()
            case _:
                raise ValueError(f"unknown message {message}")

    def _release(self, numbers: Sequence[int]) -> None:
        for seq in numbers:
            if (transfer := self._transfers.pop(seq, None)) is not None:
                self._staging.release(transfer)

    def _on_end(self, error: Exception | None) -> None:
        if error is None:
            self._gone.set()
        if not self._over.is_set():
            self._end_process()
            how = (
                self._how_it_ended()
                if error is None
                else f"has sent something that cannot be handled: {error!r}"
            )
            self._fail(WorkerFailed(f"the I/O process of {self._who} (pid {self.pid}) {how}"))
            self._over.set()

    def _fail(self, error: ReductionError) -> None:
        """Complete every collective without a result with the error. Later ones are not taken."""
        self._failure = self._owner.on_failed(error)
        for transfer in list(self._transfers.values()):
            self._staging.fail(transfer, self._failure)
        self._transfers.clear()

    def _end_process(self) -> None:
        """Close the channel, and ensure that the process has ended."""
        self._channel.close()
        if not self._gone.is_set():
            self._process.kill()
        try:
            self._process.wait(STOP_S)  # it is about to end
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _how_it_ended(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}; its own message is on stderr"


def _started(stdin: socket.socket) -> subprocess.Popen[bytes]:
    command, environment = io_process_command(Path(__file__).parents[2])
    # Its own session, so that Ctrl-C in a terminal does not reach it.
    return subprocess.Popen(command, stdin=stdin.fileno(), env=environment, start_new_session=True)

"""The other ranks of a node, as processes: their ends are detected immediately, and each can send short notes to all.

A pidfd shows that a rank's process has ended, even while its children keep its sockets open. Notes are datagrams of
a Unix socket without a file. The kernel identifies the sender of a note; notes from other processes are not read.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from reduction.errors import ConfigError

_HEAD = struct.Struct("<BIQ")
#: Maximum number of bytes of text in a note, the same as in the message of an Abort.
_TEXT_MAX = 8000
#: How long sending a note waits for a neighbour that does not read, in seconds. The kernel queues 10 notes before that.
_SEND_S = 0.5
_SOCKET = socket.AF_UNIX, socket.SOCK_DGRAM
#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


class Kind(enum.IntEnum):
    """What a note is about."""

    #: The communicator has failed; `code` and `text` are the error's.
    FAILED = 1
    #: The rank takes part in the first `number` collectives and in no more.
    LEFT = 2
    #: The rank is waiting for others to issue collective `number`.
    WAITS = 3


@dataclass(frozen=True, slots=True)
class Note:
    """A message from a neighbour."""

    local_rank: int
    kind: Kind
    number: int = 0
    code: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a neighbour's process."""

    local_rank: int


class Neighbours:
    """The neighbours of one rank in one communicator. `listen` is for one thread, `tell` and `wake` for any.

    Raises:
        ConfigError: this system has no pidfds.
    """

    def __init__(self) -> None:
        if not hasattr(os, "pidfd_open"):
            raise ConfigError("local_group needs Linux 5.3 or newer, for pidfd_open")
        self._socket = socket.socket(*_SOCKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        seconds = int(_SEND_S)
        timeout = struct.pack("@ll", seconds, int((_SEND_S - seconds) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._socket.bind("")  # the kernel chooses a name
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._ranks: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._addresses: list[bytes] = []

    @property
    def address(self) -> str:
        """Return the address of this rank's socket, for `meet` on the other ranks."""
        name: bytes = self._socket.getsockname()
        return name.hex()

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that a forked child must close."""
        number = self._socket.fileno()
        return [*self._pidfds, *([number] if number >= 0 else [])]

    def meet(self, others: Mapping[int, tuple[int, str]]) -> None:
        """Begin to watch the other ranks.

        Args:
            others: pid and `address` of each, by local rank.

        Raises:
            ProcessLookupError: one of the processes has ended.
        """
        for local_rank, (pid, address) in others.items():
            pidfd = os.pidfd_open(pid)
            self._pidfds[pidfd] = local_rank
            self._ranks[pid] = local_rank
            self._addresses.append(bytes.fromhex(address))
            self._poll.register(pidfd, select.POLLIN)

    def tell(self, kind: Kind, *, number: int = 0, code: int = 0, text: str = "") -> None:
        """Send a note to all neighbours."""
        data = _HEAD.pack(kind, code, number) + text.encode("utf-8", "replace")[:_TEXT_MAX]
        for address in self._addresses:
            # The neighbour is gone, which its pidfd reports, or it does not read, in which case no note can reach it.
            with contextlib.suppress(OSError):
                self._socket.sendto(data, address)

    def wake(self) -> None:
        """Make `listen` return immediately."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", self._socket.getsockname())

    def listen(self, timeout_s: float) -> list[Note | Ended]:
        """Wait for news and return it, notes first: a rank sends its note about leaving before its process ends."""
        ready = [number for number, _ in self._poll.poll(timeout_s * 1000)]
        news: list[Note | Ended] = []
        while (note := self._receive()) is not None:
            news += note
        for number in ready:
            if number in self._pidfds:
                news.append(Ended(self._pidfds.pop(number)))
                self._poll.unregister(number)
                os.close(number)
        return news

    def close(self) -> None:
        """Close the socket and all pidfds. Call this on the thread that calls `listen`, or when there is none."""
        self._socket.close()
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._pidfds.clear()

    def _receive(self) -> list[Note] | None:
        """Return the next datagram's note, in a list that is empty if it has none, or None if there is no datagram."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _HEAD.size + _TEXT_MAX, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return None
        for level, kind, credentials in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                local_rank = self._ranks.get(_CREDENTIALS.unpack(credentials)[0])
                if local_rank is not None and len(data) >= _HEAD.size:
                    what, code, number = _HEAD.unpack_from(data)
                    text = data[_HEAD.size :].decode("utf-8", "replace")
                    return [Note(local_rank, Kind(what), number, code, text)]
        return []

"""Registry in which the workers of elastic jobs find each other: their latest entries, and their presence.

A reducer makes no decisions from it, and loses nothing with it. Each worker sends the same entry to
every reducer, and sends it again to one that was restarted.

event            effect
first request    the worker is present; all workers of its job are notified, including itself
later request    its entry changes; all are notified
stream ended     it is gone; all are notified. It is forgotten after LOBBY_S, once all know
process ended    it will not return; all are notified
second stream    of the same worker: the first one no longer counts

Each stream is sent the changes since its previous answer, in answers of about LOBBY_ANSWER_BYTES. So a worker's change
costs one entry per worker, and a stream that is not read never has more than one answer waiting. The first answers of
a stream have all entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reduction.errors import OutOfOrder, ResourceExhausted, UnsupportedVersion
from reduction.limits import (
    LOBBY_ANSWER_BYTES,
    LOBBY_BYTES_MAX,
    LOBBY_ENTRIES_MAX,
    LOBBY_S,
    LOBBY_SAYS_MAX,
    LOBBY_SAYS_PER_S,
    LOBBY_WORKER_BYTES,
)
from reduction.model import LobbyEntry, LobbyNews, LobbyRequest

from reducer.core.fair_shares import Account, Shares


@dataclass(slots=True)
class _Guest:
    """A worker that is present, or recently was."""

    entry: bytes
    #: Its stream; None if that has ended.
    stream: int | None
    #: Account that is charged for the worker.
    account: Account
    #: Value of the room's version, which rises with every change, at this worker's last change.
    version: int
    #: Time until which its requests are accounted for at a rate of LOBBY_SAYS_PER_S.
    paid_until: float
    #: When its stream ended.
    gone_at: float = 0.0
    #: Whether its process has ended.
    has_ended: bool = False


@dataclass(slots=True)
class _Room:
    """The workers of one job."""

    #: Workers in the order of their last change, the latest last.
    guests: dict[bytes, _Guest] = field(default_factory=dict)
    #: The version up to which each stream has been told; -1 for a worker of an older release, which needs all entries
    #: in one answer.
    told: dict[int, int] = field(default_factory=dict)
    version: int = 0
    entry_bytes: int = 0

    def put(self, nonce: bytes, guest: _Guest) -> None:
        self.version += 1
        guest.version = self.version
        self.guests.pop(nonce, None)
        self.guests[nonce] = guest


class Lobby:
    """All workers of all elastic jobs, by job and nonce. Times are monotonic seconds."""

    def __init__(self, limit_bytes: int = LOBBY_BYTES_MAX) -> None:
        #: Memory for workers: their entries, and the answers that wait to be read.
        self.shares = Shares(limit_bytes)
        self._rooms: dict[str, _Room] = {}
        #: Job and worker of each stream.
        self._streams: dict[int, tuple[str, bytes]] = {}

    def on_request(self, stream: int, request: LobbyRequest, account: Account, now: float) -> tuple[int, ...]:
        """Handle a worker's request, and return the streams that must be notified.

        Raises:
            ResourceExhausted: the job has too many workers, its account is exhausted, or requests are too frequent.
            UnsupportedVersion: the job has a worker of an older release, which can take no more entries.
            OutOfOrder: the stream belongs to another worker.
        """
        who = request.job, request.nonce
        if self._streams.get(stream, who) != who:
            raise OutOfOrder("a stream of the lobby spoke for two workers")
        room = self._rooms.get(request.job) or _Room()
        before = room.guests.get(request.nonce)
        paid_until = max(now, before.paid_until if before is not None else now) + 1 / LOBBY_SAYS_PER_S
        if paid_until > now + LOBBY_SAYS_MAX / LOBBY_SAYS_PER_S:
            raise ResourceExhausted(
                f"a worker of job {request.job!r} has sent {LOBBY_SAYS_MAX} messages to the lobby more than the "
                f"allowed {LOBBY_SAYS_PER_S:g} per second"
            )
        more = len(request.entry) - (0 if before is None else len(before.entry))
        cost = more + (0 if before is not None else LOBBY_WORKER_BYTES)
        account = account if before is None else before.account
        is_full = before is None and len(room.guests) >= LOBBY_ENTRIES_MAX
        if is_full or cost > self.shares.free(account):
            raise ResourceExhausted(
                f"the lobby has {len(room.guests)} workers of job {request.job!r}, and workers of all jobs have "
                f"{self.shares.taken} of its {self.shares.limit} bytes; the job and its token may have "
                f"{max(0, self.shares.free(account))} bytes more, and a job {LOBBY_ENTRIES_MAX} workers: try again "
                f"later"
            )
        told = {**room.told, stream: room.told.get(stream, 0) if request.takes_news else -1}
        if min(told.values()) < 0 and room.entry_bytes + more > LOBBY_ANSWER_BYTES:
            raise UnsupportedVersion(
                f"workers of an older version are in the lobby of job {request.job!r}, and accept at most "
                f"{LOBBY_ANSWER_BYTES} bytes of entries at a time: install the same version on all workers"
            )
        if before is not None and before.stream not in (None, stream):
            self._streams.pop(before.stream, None)
            told.pop(before.stream, None)
        self.shares.take(account, cost)
        self._streams[stream] = who
        self._rooms[request.job] = room
        room.entry_bytes += more
        room.told = told
        room.put(request.nonce, _Guest(request.entry, stream, account, 0, paid_until))
        return tuple(told)

    def on_end(self, stream: int, now: float) -> tuple[int, ...]:
        """Record that a stream has ended, and return the streams that must be notified."""
        job, nonce = self._streams.pop(stream, ("", b""))
        room = self._rooms.get(job)
        if room is None:
            return ()
        del room.told[stream]
        guest = room.guests[nonce]
        guest.stream, guest.gone_at = None, now
        room.put(nonce, guest)
        return tuple(room.told)

    def on_ended(self, job: str, nonce: bytes) -> tuple[int, ...]:
        """Record that the process of a gone worker has ended, and return the streams that must be notified."""
        room = self._rooms.get(job)
        guest = None if room is None else room.guests.get(nonce)
        if room is None or guest is None or guest.stream is not None:
            return ()
        guest.has_ended = True
        room.put(nonce, guest)
        return tuple(room.told)

    def news(self, stream: int) -> LobbyNews:
        """Return the next answer for a stream, and record that it was sent."""
        job, _ = self._streams.get(stream, ("", b""))
        room = self._rooms.get(job) or _Room(told={stream: 0})
        told = room.told[stream]
        changed = []
        for nonce, guest in reversed(room.guests.items()):
            if guest.version <= told:
                break
            changed.append((nonce, guest))
        entries: list[LobbyEntry] = []
        nbytes = 0
        while changed and (told < 0 or nbytes < LOBBY_ANSWER_BYTES):
            nonce, guest = changed.pop()
            entries.append(LobbyEntry(nonce, guest.entry, guest.stream is None, guest.has_ended))
            nbytes += len(guest.entry)
            if told >= 0:
                room.told[stream] = guest.version
        return LobbyNews(tuple(entries), adds=told >= 0, has_more=bool(changed))

    def forget(self, now: float) -> None:
        """Forget the workers that have been gone for a while, once all others know."""
        for job, room in list(self._rooms.items()):
            # Workers without a change for longest come first.
            due = [
                (nonce, guest)
                for nonce, guest in room.guests.items()
                if guest.stream is None and now > guest.gone_at + LOBBY_S
            ]
            for nonce, guest in due:
                if all(told < 0 or told >= guest.version for told in room.told.values()):
                    self.shares.take(guest.account, -len(guest.entry) - LOBBY_WORKER_BYTES)
                    room.entry_bytes -= len(guest.entry)
                    del room.guests[nonce]
            if not room.guests:
                del self._rooms[job]

"""Where the workers of elastic jobs see each other: what each has said last, and whether it is still there.

A reducer decides nothing from it, and loses nothing with it: each worker says the same to every
reducer, and says it again to one that was restarted.

event            what follows
first request    the worker is there; all workers of its job are told, itself too
later request    it says something else; all are told
stream ended     it is gone; all are told. It is forgotten after LOBBY_S
a second stream  of the same worker: the first one counts no more
"""

from __future__ import annotations

from dataclasses import dataclass

from reduction.errors import OutOfOrder, ResourceExhausted
from reduction.limits import LOBBY_BYTES_MAX, LOBBY_ENTRIES_MAX, LOBBY_S
from reduction.model import LobbyEntry, LobbyRequest

#: What an entry is counted as beside its bytes: its keys and objects.
OVERHEAD_BYTES = 512


@dataclass(slots=True)
class _Guest:
    """A worker that is there, or was a moment ago."""

    entry: bytes
    #: Its stream; None if that has ended.
    stream: int | None
    #: When its stream ended.
    gone_at: float = 0.0


class Lobby:
    """All workers of all elastic jobs, by job and nonce. Times in seconds, monotonic."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[bytes, _Guest]] = {}
        #: Job and worker of each stream.
        self._streams: dict[int, tuple[str, bytes]] = {}
        self._bytes = 0

    def on_request(self, stream: int, request: LobbyRequest) -> tuple[int, ...]:
        """Take what a worker says; return the streams that must be told.

        Raises:
            ResourceExhausted: too many workers of this job, or too much of all jobs.
            OutOfOrder: the stream has said that it is another worker.
        """
        who = request.job, request.nonce
        if self._streams.get(stream, who) != who:
            raise OutOfOrder("a stream of the lobby spoke for two workers")
        guests = self._jobs.get(request.job, {})
        before = guests.get(request.nonce)
        more = len(request.entry) - (len(before.entry) if before is not None else -OVERHEAD_BYTES)
        is_full = before is None and len(guests) >= LOBBY_ENTRIES_MAX
        if is_full or self._bytes + more > LOBBY_BYTES_MAX:
            raise ResourceExhausted(
                f"the lobby has {len(guests)} workers of job {request.job!r} and {self._bytes} bytes of all jobs; "
                f"{LOBBY_ENTRIES_MAX} and {LOBBY_BYTES_MAX} are the limits: try again later"
            )
        self._bytes += more
        if before is not None and before.stream is not None:
            self._streams.pop(before.stream, None)
        self._streams[stream] = who
        self._jobs.setdefault(request.job, {})[request.nonce] = _Guest(request.entry, stream)
        return self._of_job(request.job)

    def on_end(self, stream: int, now: float) -> tuple[int, ...]:
        """Take note that a stream has ended; return the streams that must be told."""
        job, nonce = self._streams.pop(stream, ("", b""))
        guest = self._jobs.get(job, {}).get(nonce)
        if guest is None:
            return ()
        guest.stream, guest.gone_at = None, now
        return self._of_job(job)

    def entries(self, stream: int) -> tuple[LobbyEntry, ...]:
        """Return what a stream must be told: what all workers of its job have said last."""
        job, _ = self._streams.get(stream, ("", b""))
        guests = sorted(self._jobs.get(job, {}).items())
        return tuple(LobbyEntry(nonce, guest.entry, guest.stream is None) for nonce, guest in guests)

    def forget(self, now: float) -> None:
        """Forget the workers that have been gone for a while."""
        for job, guests in list(self._jobs.items()):
            for nonce, guest in list(guests.items()):
                if guest.stream is None and now > guest.gone_at + LOBBY_S:
                    self._bytes -= len(guest.entry) + OVERHEAD_BYTES
                    del guests[nonce]
            if not guests:
                del self._jobs[job]

    def _of_job(self, job: str) -> tuple[int, ...]:
        return tuple(guest.stream for guest in self._jobs[job].values() if guest.stream is not None)

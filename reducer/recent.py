"""Recent events of one reducer process, which the Status call reports to people who watch."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from reduction.limits import ENDED_JOBS_MAX, EVENT_CHARS_MAX, EVENTS_MAX, ID_BYTES
from reduction.model import EndedJob, Event, EventKind
from reduction.text import printable

from reducer.core.job import Job

#: Name prefix of doctors' jobs, unless tokens require another name. They come by the dozen, and are not worth an event.
DOCTOR_PREFIX = "doctor-"


def shown(secret: bytes) -> bytes:
    """Return a digest of a nonce or an instance for a Status, because the originals would allow others to join."""
    return hashlib.blake2b(secret, digest_size=ID_BYTES).digest()


class Recent:
    """The latest EVENTS_MAX events, and the latest ENDED_JOBS_MAX ended jobs.

    Args:
        clock: returns seconds; only differences matter.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._count = 0
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        #: Ended jobs, with the times of their ends.
        self._ended: deque[tuple[EndedJob, float]] = deque(maxlen=ENDED_JOBS_MAX)

    def add(self, kind: EventKind, job: str, text: str) -> None:
        """Record an event with its text cut. `job` is a title, or empty if the event concerns the whole process."""
        if job.startswith(DOCTOR_PREFIX):
            return
        self._count += 1
        at_s = self._clock() - self._started_at
        self._events.append(Event(self._count, at_s, kind, job, printable(text)[:EVENT_CHARS_MAX]))

    def end(self, job: Job, seconds: float) -> None:
        """Record that a job is over, `seconds` after its first epoch began."""
        if job.name.startswith(DOCTOR_PREFIX):
            return
        waited_s = job.waits.waited_s
        waited_for = max(waited_s, key=waited_s.__getitem__, default=0)
        ended = EndedJob(
            job=job.name,
            group=job.group,
            world_size=job.world_size,
            id=shown(job.instance),
            outcome=job.outcome,
            collectives=job.minimum,
            received_bytes=job.received_bytes,
            sent_bytes=job.sent_bytes,
            seconds=seconds,
            waited_for=waited_for,
            waited_s=waited_s.get(waited_for, 0.0),
        )
        self._ended.append((ended, self._clock()))

    def events(self) -> tuple[Event, ...]:
        """Return the events, oldest first."""
        return tuple(self._events)

    def ended(self) -> tuple[EndedJob, ...]:
        """Return the ended jobs, oldest first."""
        now = self._clock()
        return tuple(replace(ended, ago_s=now - at) for ended, at in self._ended)

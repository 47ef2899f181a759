"""The latest events of one reducer process, which the Status call tells to those who watch it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from reduction.limits import EVENT_CHARS_MAX, EVENTS_MAX
from reduction.model import Event, EventKind
from reduction.text import printable


class RecentEvents:
    """Keeps the latest EVENTS_MAX events.

    Args:
        clock: returns seconds, of which only differences count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._count = 0
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)

    def add(self, kind: EventKind, job: str, text: str) -> None:
        """Record an event; its text is cut. `job` is a title, and empty if the event concerns the whole process."""
        self._count += 1
        at_s = self._clock() - self._started_at
        self._events.append(Event(self._count, at_s, kind, job, printable(text)[:EVENT_CHARS_MAX]))

    def all(self) -> tuple[Event, ...]:
        """Return the events, oldest first."""
        return tuple(self._events)

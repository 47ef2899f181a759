"""The events of all processes as one list, oldest first. No terminal, no network.

Each process numbers its events, so that a look takes only new ones. Processes report the age of events,
and the observer's clock determines their times. An event that several processes of a job see, such as a
rank that joins, is one entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from reduction.model import EventKind, ReducerStatus

from reducer.observe.summary import Process

#: Maximum number of entries.
ENTRIES_MAX = 200
#: Equal events at two processes are one entry if they are less than this apart, in seconds.
SAME_S = 5.0
#: Number of processes whose latest event is remembered. All events of a forgotten process count as new.
PROCESSES_REMEMBERED_MAX = 4096
#: An event cannot be older than this, in seconds. A reducer that claims so is wrong.
AGE_MAX_S = 10 * 365 * 86_400.0
#: Kinds of entries other than those of `EventKind`, which only the observer can know.
SILENT, BACK = "silent", "back"


@dataclass(frozen=True, slots=True)
class Entry:
    """An event at one or several processes."""

    #: Seconds since the epoch by the observer's clock.
    at_s: float
    #: The name of an `EventKind` in lower case, SILENT or BACK.
    kind: str
    #: Title of the job. Empty if it concerns whole processes.
    job: str
    text: str
    #: Addresses of the processes that reported it.
    addresses: tuple[str, ...]

    @property
    def where(self) -> str:
        """The process, or the number of processes."""
        return self.addresses[0] if len(self.addresses) == 1 else f"{len(self.addresses)} processes"


@dataclass(slots=True)
class _Growing:
    """An entry that more processes may report."""

    at_s: float
    what: tuple[str, str, str]
    #: The keys are addresses in order of arrival.
    addresses: dict[str, None]

    def is_same(self, at_s: float, address: str) -> bool:
        """Return whether an equal event at another process is the same entry."""
        return abs(self.at_s - at_s) <= SAME_S and address not in self.addresses


class Feed:
    """Collection of the events of all looks."""

    def __init__(self) -> None:
        #: Sorted by time.
        self._entries: list[_Growing] = []
        #: The same entries by content, because there may be thousands of processes.
        self._by_what: dict[tuple[str, str, str], list[_Growing]] = {}
        #: The number of the latest event of each incarnation, with the most recently seen process last.
        self._taken: OrderedDict[bytes, int] = OrderedDict()
        #: Whether each address answered the previous look.
        self._answered: dict[str, bool] = {}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The latest ENTRIES_MAX, oldest first."""
        return tuple(Entry(one.at_s, *one.what, tuple(one.addresses)) for one in self._entries)

    def take(self, processes: Sequence[Process], now_s: float) -> None:
        """Add the events since the previous look."""
        answered = {process.address: process.status is not None for process in processes}
        for process in processes:
            did_answer = self._answered.get(process.address, True)
            if process.status is None:
                if did_answer:
                    self._add(now_s, (SILENT, "", f"no answer: {process.reason}"), process.address)
                continue
            if not did_answer:
                self._add(now_s, (BACK, "", "answers again"), process.address)
            self._take(process.address, process.status, now_s)
        self._answered = answered
        self._entries = sorted(self._entries, key=lambda entry: entry.at_s)[-ENTRIES_MAX:]
        self._by_what = {}
        for entry in self._entries:
            self._by_what.setdefault(entry.what, []).append(entry)

    def _take(self, address: str, status: ReducerStatus, now_s: float) -> None:
        taken = self._taken.get(status.incarnation, 0)
        for event in status.events:
            if event.number <= taken:
                continue
            taken = event.number
            age_s = status.uptime_seconds - event.at_s
            at_s = now_s - age_s if 0 <= age_s <= AGE_MAX_S else now_s
            self._add(at_s, (EventKind(event.kind).name.lower(), event.job, event.text), address)
        self._taken[status.incarnation] = taken
        self._taken.move_to_end(status.incarnation)
        while len(self._taken) > PROCESSES_REMEMBERED_MAX:
            self._taken.popitem(last=False)

    def _add(self, at_s: float, what: tuple[str, str, str], address: str) -> None:
        alike = self._by_what.setdefault(what, [])
        # Search the newest first, because another process now reports a recent event.
        known = next((entry for entry in reversed(alike) if entry.is_same(at_s, address)), None)
        if known is not None:
            known.addresses[address] = None
            return
        entry = _Growing(at_s, what, {address: None})
        self._entries.append(entry)
        alike.append(entry)

"""Warnings and timeouts for collectives that do not progress, with the ranks that are late.

Reducers report which ranks their oldest chunk waits for (`Waiting`). Of the ranks that wait, the
lowest warns and the others only log it as information. So a stall is one warning in a job's log,
and not one per rank.
"""

from __future__ import annotations

from reduction.errors import CollectiveTimeout
from reduction.model import Waiting

from worker_plugin.core.actions import Action, Log
from worker_plugin.core.membership.roster import Roster
from worker_plugin.core.window import Outstanding, Window

_INFO, _WARNING = 20, 30


class Stalls:
    """Watches one rank's oldest collective.

    Args:
        rank: this rank.
        roster: its links.
        window: its collectives.
        actions: those of the core; what follows is added to them.
        stall_warn_s: how long nothing may come before a warning, in seconds.
        timeout_s: how long a collective may take from its first push, in seconds.
    """

    def __init__(
        self,
        rank: int,
        roster: Roster,
        window: Window,
        actions: list[Action],
        *,
        stall_warn_s: float,
        timeout_s: float,
    ) -> None:
        self._actions = actions
        self._rank = rank
        self._roster = roster
        self._window = window
        self._stall_warn_s = stall_warn_s
        self._timeout_s = timeout_s
        #: The last collective that was logged because this rank, or the others, wait for it.
        self.warned_seq: int | None = None

    def check(self, now: float, *, is_running: bool) -> None:
        """Warn once if no result of the oldest collective has come for too long, and give it up in the end.

        Args:
            now: the present time.
            is_running: whether an epoch runs. While none does, `Patience` says what this rank waits
                for.

        Raises:
            CollectiveTimeout: it is not done `timeout_s` after its first push.
        """
        seq = self._window.held
        oldest = self._window.outstanding.get(seq)
        if oldest is None:
            self._check_own()
            return
        if oldest.pushed_at is None:
            return
        waited = now - oldest.pushed_at
        is_late = waited >= self._timeout_s
        is_still = now - oldest.moved_at >= self._stall_warn_s  # a slow link is no stall
        if not is_late and (not (is_still and is_running) or self.warned_seq == seq):
            return
        news = self._news()
        names = {
            peer.rank: str(peer) for report in news for peer in report.missing if peer.rank != self._rank
        }
        late = [names[rank] for rank in sorted(names)]
        text = f"{self._text(seq, oldest, now, late)}; {self._end(waited, late, is_late=is_late)}"
        if is_late:
            raise CollectiveTimeout(text)
        self.warned_seq = seq
        others_speak = any(rank not in names for rank in range(self._rank))
        is_told_all = news and all(report.count == len(report.missing) for report in news)
        self._actions.append(Log(_INFO if others_speak and is_told_all else _WARNING, text))

    def _check_own(self) -> None:
        """Warn if the others wait for a collective that this rank has not issued yet."""
        for link in self._roster:
            news = link.waiting
            if (
                news is not None
                and not news.epoch
                and news.waited_s >= self._stall_warn_s
                and news.seq >= self._window.issued
                and news.seq != self.warned_seq
            ):
                self.warned_seq = news.seq
                text = f"this rank is late by {news.waited_s:.0f} s: others wait for it to issue collective {news.seq}"
                self._actions.append(Log(_WARNING, text))

    def _news(self) -> list[Waiting]:
        """Return the reducers' reports of the ranks that they wait for, as far as these are still true."""
        return [
            link.waiting
            for link in self._roster
            if link.lane is not None and link.waiting is not None and self._is_missing(link.waiting)
        ]

    def _is_missing(self, news: Waiting) -> bool:
        issue = None if news.epoch else self._window.outstanding.get(news.seq)
        return issue is not None and news.chunk < len(issue.here) and self._window.needs(news.seq, news.chunk)

    def _text(self, seq: int, oldest: Outstanding, now: float, names: list[str]) -> str:
        assert oldest.pushed_at is not None
        waited, still = now - oldest.pushed_at, now - oldest.moved_at
        links = [link.address for link in self._roster if link.lane is not None and link.lane.pending]
        where = ", ".join(links)
        if names:
            who = f"{', '.join(names)} {_verb(names, 'is', 'are')} late by {still:.0f} s"
        elif links:
            who = f"{where} {_verb(links, 'has', 'have')} sent no result for {still:.0f} s"
        else:
            who = f"no reducer is left, and no result has come for {still:.0f} s"
        at = f" at {where}" if names and links else ""
        missing = f"{oldest.missing} of {len(oldest.here)} chunks are missing{at}"
        return f"{who}: collective {seq} ({oldest.collective}) is not done after {waited:.0f} s, {missing}"

    def _end(self, waited: float, names: list[str], *, is_late: bool) -> str:
        if not is_late:
            return f"giving up in {max(0.0, self._timeout_s - waited):.0f} s"
        whose = (
            "those ranks' logs"
            if len(names) > 1
            else "that rank's log"
            if names
            else "the ranks' and reducers' logs"
        )
        return f"see {whose}, or raise timeout_s ({self._timeout_s:g} s)"


def _verb(names: list[str], one: str, many: str) -> str:
    return one if len(names) == 1 else many

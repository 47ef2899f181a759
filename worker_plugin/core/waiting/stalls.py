"""Warnings and timeouts for collectives that make no progress, naming the late ranks.

Reducers report which ranks their oldest chunk is waiting for (`Waiting`). The lowest of the waiting ranks warns,
and the others only log it as information. So a stall is one warning in a job's log, rather than one per rank.
Nor is it one per collective: thousands of small ones may be in flight.
"""

from __future__ import annotations

from reduction.errors import CollectiveTimeout
from reduction.model import Waiting

from worker_plugin.core.actions import INFO, WARNING, Action, Log
from worker_plugin.core.link import Link
from worker_plugin.core.membership.roster import Roster
from worker_plugin.core.window import Outstanding, Window


class Stalls:
    """Watches one rank's oldest collective.

    Args:
        rank: this rank.
        roster: its links.
        window: its collectives.
        actions: the core's list, which resulting actions are appended to.
        stall_warn_s: how long nothing may arrive before a warning, in seconds.
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
        #: The last collective that was logged because this rank, or the others, were waiting for it.
        self._warned_seq: int | None = None
        #: When each rank or reducer was named in the last `stall_warn_s` seconds.
        self._warned_at: dict[str, float] = {}

    def check(self, now: float, *, is_running: bool) -> None:
        """Warn if the oldest collective has received no result for too long, and eventually give it up.

        Warns at most once per collective, and once in `stall_warn_s` seconds for the same ranks or reducers.

        Args:
            now: the present time.
            is_running: whether an epoch is running. While none is, `Patience` reports what this rank is waiting for.

        Raises:
            CollectiveTimeout: the collective is not done `timeout_s` after its first push.
        """
        seq = self._window.held
        oldest = self._window.outstanding.get(seq)
        if oldest is None:
            self._check_own(now)
            return
        if oldest.pushed_at is None:
            return
        waited = now - oldest.pushed_at
        links = self._waited_for(seq)
        # Neither a slow link nor a long queue is a stall.
        still = now - max([oldest.moved_at, *(link.lane.moved_at for link in links if link.lane is not None)])
        is_late = waited >= self._timeout_s
        is_still = still >= self._stall_warn_s
        if not is_late and (not (is_still and is_running) or self._warned_seq == seq):
            return
        news = self._news()
        names = {
            peer.rank: str(peer) for report in news for peer in report.missing if peer.rank != self._rank
        }
        late = [names[rank] for rank in sorted(names)]
        where = [link.address for link in links]
        end = self._end(waited, late, is_late=is_late)
        text = f"{self._text(seq, oldest, waited, still, late, where)}; {end}"
        if is_late:
            raise CollectiveTimeout(text)
        if not self._may_warn(seq, late or where, now):
            return
        others_speak = any(rank not in names for rank in range(self._rank))
        is_told_all = news and all(report.count == len(report.missing) for report in news)
        self._actions.append(Log(INFO if others_speak and is_told_all else WARNING, text))

    def _check_own(self, now: float) -> None:
        """Warn if the others are waiting for a collective that this rank has not issued yet."""
        reports = [
            (news.seq, news.waited_s)
            for link in self._roster
            if (news := link.waiting) is not None
            and not news.epoch
            and news.waited_s >= self._stall_warn_s
            and news.seq >= self._window.issued
        ]
        if not reports:
            return
        seq, waited_s = min(reports)
        if self._may_warn(seq, ["this rank"], now):
            text = (
                f"this rank is late by {waited_s:.0f} s: others are waiting for it to issue collective {seq}"
            )
            self._actions.append(Log(WARNING, text))

    def _may_warn(self, seq: int, causes: list[str], now: float) -> bool:
        """Return whether to log what a collective is waiting for, and record that it is logged."""
        self._warned_at = {
            other: at for other, at in self._warned_at.items() if now - at < self._stall_warn_s
        }
        if self._warned_seq == seq or (causes and self._warned_at.keys() >= set(causes)):
            return False
        self._warned_seq = seq
        self._warned_at |= dict.fromkeys(causes, now)
        return True

    def _waited_for(self, seq: int) -> list[Link]:
        """Return the links whose next result collective `seq` needs to be complete."""
        return [
            link
            for link in self._roster
            if link.lane is not None and link.lane.pending and link.lane.pending[0].seq <= seq
        ]

    def _news(self) -> list[Waiting]:
        """Return the reducers' reports of the ranks that they are waiting for, where these still apply."""
        return [
            link.waiting
            for link in self._roster
            if link.lane is not None and link.waiting is not None and self._is_missing(link.waiting)
        ]

    def _is_missing(self, news: Waiting) -> bool:
        issue = None if news.epoch else self._window.outstanding.get(news.seq)
        return issue is not None and news.chunk < len(issue.here) and self._window.needs(news.seq, news.chunk)

    def _text(
        self, seq: int, oldest: Outstanding, waited: float, still: float, names: list[str], where: list[str]
    ) -> str:
        at = ", ".join(where)
        if names:
            who = f"{', '.join(names)} {_verb(names, 'is', 'are')} late by {still:.0f} s"
        elif where:
            who = f"{at} {_verb(where, 'has', 'have')} sent no result for {still:.0f} s"
        else:
            who = f"no result has come for {still:.0f} s"
            if not any(link.lane is not None for link in self._roster):
                are_up = any(link.is_up for link in self._roster)
                why = "the ranks have not met again at a reducer" if are_up else "no reducer is left"
                who = f"{why}, and {who}"
        missing = f"{oldest.missing} of {len(oldest.here)} chunks are missing"
        if names and where:
            missing += f" at {at}"
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

"""Reports which reducers and ranks a rank is waiting for while no epoch runs.

A collective under way that makes no progress is a different matter (stalls.py).
"""

from __future__ import annotations

from worker_plugin.core.actions import INFO, WARNING, Action, Log
from worker_plugin.core.link import LinkPhase
from worker_plugin.core.membership.judge import View
from worker_plugin.core.words import down_text, missing_ranks, silent_ranks

#: After the first message, the next ones follow at this multiple of `stall_warn_s`.
PAUSES = 3


class Patience:
    """Reports what one rank is waiting for.

    Args:
        stall_warn_s: how long the rank waits before it reports that, in seconds.
        actions: the core's list, which resulting actions are appended to.
    """

    def __init__(self, stall_warn_s: float, actions: list[Action]) -> None:
        self._actions = actions
        self._stall_warn_s = stall_warn_s
        #: Since when the rank has been waiting; None if it is not.
        self._since: float | None = None
        #: When the next message is due.
        self._due = 0.0

    def rest(self) -> None:
        """Record that the rank waits for nothing."""
        self._since = None

    def check(self, view: View) -> None:
        """Report what the rank is waiting for, if that is due. Call this at every tick while no epoch runs."""
        if not _is_waiting(view):
            self.rest()
            return
        if self._since is None:
            self._since = view.now
            self._due = view.now + self._stall_warn_s
        if view.now >= self._due:
            self._due = view.now + PAUSES * self._stall_warn_s
            self._actions += texts(view, self._since)


def _is_waiting(view: View) -> bool:
    if view.configuration is None:
        return True
    waits = (view.alone_since, view.broken_since, view.unstarted_since)
    return not view.is_idle and any(since is not None for since in waits)


def texts(view: View, since: float) -> list[Action]:
    """Return the log lines for a rank that has been waiting since `since`."""
    down = [link for link in view.links if link.phase is not LinkPhase.RETIRED and not link.is_up]
    is_alone = not any(link.is_up for link in view.links)
    logs: list[Action] = []
    if is_alone and view.awaits_fallback:
        return [Log(WARNING, "waiting for the reducer that rank 0 starts on its own host")]
    if down and (is_alone or view.configuration is None or view.broken_since is not None):
        starts = (view.alone_since, view.broken_since, view.started_at)
        start = next(start for start in starts if start is not None)
        left = _left(view.now, start + view.join_timeout_s)
        many = "s" * (len(down) > 1)
        advice = "; is `reducer serve` running there?" if any(link.is_absent for link in down) else ""
        logs.append(Log(WARNING, f"waiting for reducer{many} {down_text(down)}; {left}{advice}"))
    if is_alone:
        return logs
    left = _left(view.now, since + view.timeout_s)
    if view.met_since is None:
        who = missing_ranks(view.links, view.world_size) if view.rank == 0 else "rank 0"
        logs.append(Log(WARNING, f"waiting for {who} to connect to the reducers; {left}"))
    elif view.configuration is not None and view.broken_since is None:
        epoch = view.configuration.epoch
        text = f"waiting for {silent_ranks(view.links, epoch)} to respond to membership epoch {epoch}; {left}"
        logs.append(Log(WARNING if view.rank == 0 else INFO, text))
    elif view.rank:
        logs.append(Log(INFO, f"waiting for rank 0, which logs what it is waiting for; {left}"))
    return logs


def _left(now: float, end: float) -> str:
    return f"giving up in {max(0.0, end - now):.0f} s"

"""Restart policy of a serving process: the pause before a restart, and when to give up."""

from __future__ import annotations

#: The pause before the first restart, in seconds. Each further pause is twice as long.
PAUSE_S = 1.0
#: The longest pause, in seconds.
PAUSE_MAX_S = 30.0
#: A process that has served this long, in seconds, counts as stable, and its pauses begin again at PAUSE_S.
STEADY_S = 60.0
#: Number of consecutive starts that may fail because the process ends before it listens. Then the process has failed.
FAILED_STARTS_MAX = 5


class Restarts:
    """The ends of one serving process."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S
        #: Number of consecutive failed starts.
        self.failed_starts = 0

    @property
    def has_failed(self) -> bool:
        """Whether another start seems pointless."""
        return self.failed_starts >= FAILED_STARTS_MAX

    def after(self, served_s: float | None) -> float:
        """Return the pause before the next start, in seconds.

        Args:
            served_s: how long the ended process listened, None if it never did.
        """
        self.failed_starts = self.failed_starts + 1 if served_s is None else 0
        if served_s is not None and served_s >= STEADY_S:
            self._pause_s = PAUSE_S
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return pause_s

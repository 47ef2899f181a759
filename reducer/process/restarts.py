"""Decides when a serving process that ended is started again, and when that seems of no use."""

from __future__ import annotations

#: The pause before the first start after an end, in seconds. Each one after that is twice as long.
PAUSE_S = 1.0
#: The longest pause, in seconds.
PAUSE_MAX_S = 30.0
#: A process that has served this long, in seconds, has shown that it can: its next pause is the first one again.
STEADY_S = 60.0
#: How many starts in succession may fail because the process ends before it listens. After that it has failed.
FAILED_STARTS_MAX = 5


class Restarts:
    """The ends of one serving process."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S
        #: How many starts have failed in succession.
        self.failed_starts = 0

    @property
    def has_failed(self) -> bool:
        """Whether another start seems of no use."""
        return self.failed_starts >= FAILED_STARTS_MAX

    def after(self, served_s: float | None) -> float:
        """Return how many seconds to wait before the next start.

        Args:
            served_s: how long the process that ended has listened, None if it never did.
        """
        self.failed_starts = self.failed_starts + 1 if served_s is None else 0
        if served_s is not None and served_s >= STEADY_S:
            self._pause_s = PAUSE_S
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return pause_s

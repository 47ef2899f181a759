"""Tells when a reducer that has served is not used any more, so that it can end with its job."""

from __future__ import annotations


class Unused:
    """Measures how long a reducer has had no job since its last one."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: float | None = None

    def is_over(self, *, has_served: bool, jobs: int, now_s: float) -> bool:
        """Return whether there has been no job for the limit, at a reducer that has had one.

        Args:
            has_served: whether a rank of some job has ever been welcomed.
            jobs: how many jobs there are now.
            now_s: the time of any clock that goes forward, in seconds.
        """
        if jobs or not has_served:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= self._limit_s

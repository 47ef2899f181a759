"""Detect when a reducer is no longer used, or never was, so that it can end with its job."""

from __future__ import annotations


class NoJob(Exception):
    """No job came within --wait-for-job."""


class Unused:
    """The time for which a reducer has had no job, since its last one or since its start.

    Args:
        after_job_s: how long it stays after its last job, in seconds; None means forever.
        first_job_s: how long it waits for its first job, in seconds; None means forever.
    """

    def __init__(self, after_job_s: float | None, first_job_s: float | None = None) -> None:
        self._after_job_s = after_job_s
        self._first_job_s = first_job_s
        self._since_s: float | None = None
        self._had_job = False

    def is_over(self, *, has_served: bool, jobs: int, now_s: float) -> bool:
        """Return whether there has been no job for the limit.

        Args:
            has_served: whether a rank of some job has ever been welcomed.
            jobs: current number of jobs.
            now_s: monotonic time in seconds.
        """
        if jobs or has_served != self._had_job:
            self._since_s = None
        self._had_job = has_served
        limit_s = self._after_job_s if has_served else self._first_job_s
        if jobs or limit_s is None:
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= limit_s

"""Memory reservations of jobs."""

from __future__ import annotations

from reduction.limits import CREDIT_BYTES_LEAST, CREDIT_BYTES_USUAL, JOB_FIXED_BYTES


def reservation(world_size: int, credit_bytes: int) -> int:
    """Return the bytes set aside for a job at its first Join.

    Each rank gets `credit_bytes` for contributions that wait for lower ranks, and as much again for
    accumulators and outgoing results. All ranks push in the same order, so no rank can be ahead of the
    slowest by more than its credit.
    """
    return 2 * world_size * credit_bytes + JOB_FIXED_BYTES


def grant(asked_bytes: int, world_size: int, free_bytes: int) -> int:
    """Return the credit of a new job, or 0 if there is too little memory for it.

    Beyond CREDIT_BYTES_USUAL, the job gets only as much of its request as leaves half of the free memory
    to later jobs. A reducer never refuses a job for which CREDIT_BYTES_LEAST fits.
    """

    def fitting(memory_bytes: int) -> int:
        return (memory_bytes - JOB_FIXED_BYTES) // (2 * world_size)

    usual = min(fitting(free_bytes), CREDIT_BYTES_USUAL)
    granted = min(asked_bytes, max(fitting(free_bytes // 2), usual))
    return granted if granted >= min(asked_bytes, CREDIT_BYTES_LEAST) else 0

"""Whether one rank is the one that the others wait for, from counts of who was the last to push a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reduction.model import JobStatus

#: A rank is a straggler if it is the last for this share of the chunks. Of two ranks one is always last.
SHARE, SHARE_OF_TWO = 0.6, 0.75
#: ... and only if chunks wait at least this long for it on average, in seconds.
WAIT_S = 0.001
#: With fewer chunks there is no verdict.
CHUNKS_MIN = 16
#: A straggler is why collectives take long only if chunks spend at least this share of their time
#: waiting for it. Where one rank's own link is slow they spend 0.56 to 1.3 of it so. Where ranks share a slow link
#: one of them may always be last without being the reason: 0.08 to 0.26 if they are paced, once 0.5 if not.
TIME_SHARE = 0.5


class Straggler(NamedTuple):
    """The rank that others wait for."""

    rank: int
    #: Fraction of the chunks for which it was the last rank.
    share: float
    #: How long such a chunk waits on average, in seconds.
    wait_s: float

    def is_cause(self, chunk_time_s: float) -> bool:
        """Whether it is why collectives take long, if a chunk takes so long from push to result on other ranks."""
        return self.wait_s >= TIME_SHARE * chunk_time_s


def straggler(counts: Mapping[int, int], waits: Mapping[int, float], world_size: int) -> Straggler | None:
    """Return the straggler; None if there is none, or if too few chunks tell.

    Args:
        counts: for how many chunks a rank was the last, by rank.
        waits: how long those chunks waited in all, in seconds, by rank.
        world_size: of the job.
    """
    chunks = sum(counts.values())
    if chunks < CHUNKS_MIN or world_size < 2:
        return None
    rank = max(counts, key=lambda number: counts[number])
    share, wait_s = counts[rank] / chunks, waits[rank] / counts[rank]
    least = SHARE_OF_TWO if world_size == 2 else SHARE
    return Straggler(rank, share, wait_s) if share >= least and wait_s >= WAIT_S else None


def waited_for(counts: Mapping[int, int], waits: Mapping[int, float]) -> Straggler | None:
    """Return the rank that most of the waiting is for, even if it is not the last for most of the chunks.

    A rank that begins late is the last for as many chunks as the credit allows to be under way. The
    chunks after those are anybody's. Arguments and result as for `straggler`.
    """
    seconds = sum(waits.values())
    if sum(counts.values()) < CHUNKS_MIN or not seconds:
        return None
    rank = max(waits, key=lambda number: waits[number])
    wait_s = waits[rank] / counts[rank]
    is_clear = waits[rank] >= SHARE_OF_TWO * seconds and wait_s >= WAIT_S
    return Straggler(rank, counts[rank] / sum(counts.values()), wait_s) if is_clear else None


def last_ranks(
    parts: Iterable[tuple[JobStatus, JobStatus | None]],
) -> tuple[dict[int, int], dict[int, float]]:
    """Return for how many chunks each rank was the last, and how long those waited for it in seconds.

    Args:
        parts: what each reducer process says of the job, now and before; None: since the job's start.
    """
    counts: dict[int, int] = {}
    waits: dict[int, float] = {}
    for now, before in parts:
        former = {} if before is None else {entry.rank: entry for entry in before.last}
        for entry in now.last:
            chunks, waited_s = entry.chunks, entry.waited_s
            if (old := former.get(entry.rank)) is not None:
                chunks, waited_s = chunks - old.chunks, waited_s - old.waited_s
            if chunks > 0:
                counts[entry.rank] = counts.get(entry.rank, 0) + chunks
                waits[entry.rank] = waits.get(entry.rank, 0.0) + waited_s
    return counts, waits

"""Find a rank that the others wait for, from counts of which rank was the last to push a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reduction.model import JobStatus

#: A rank is a straggler if it is the last for this share of the chunks. The second value is for two ranks, as one of
#: them is always last.
SHARE, SHARE_OF_TWO = 0.6, 0.75
#: A straggler's chunks must also wait at least this long for it on average, in seconds.
WAIT_S = 0.001
#: With fewer chunks there is no verdict.
CHUNKS_MIN = 16
#: A straggler is the cause of slow collectives only if chunks spend at least this share of their time waiting for it.
#: With a slow link of one rank they spend 0.56 to 1.3 of their time waiting. If ranks share a slow link, one of them
#: may always be last without being the cause. The share is then 0.08 to 0.26 if they are paced, and was once 0.5 if
#: not.
TIME_SHARE = 0.5


class Straggler(NamedTuple):
    """The rank that others wait for."""

    rank: int
    #: Fraction of the chunks for which it was the last rank.
    share: float
    #: Mean wait of such a chunk, in seconds.
    wait_s: float

    def is_cause(self, chunk_time_s: float) -> bool:
        """Return whether it causes slow collectives, given a chunk's time from push to result on other ranks."""
        return self.wait_s >= TIME_SHARE * chunk_time_s

    def advice(self, *, is_shared: bool = False) -> str:
        """Return what to look at, in words.

        Args:
            is_shared: whether all streams go through shared memory, so that its link cannot be slow.
        """
        return (
            f"rank {self.rank} was last for {100 * self.share:.0f} % of the chunks, which waited "
            f"{1e3 * self.wait_s:.1f} ms for it: look at its data loader and its {'cores' if is_shared else 'link'}"
        )


def straggler(counts: Mapping[int, int], waits: Mapping[int, float], world_size: int) -> Straggler | None:
    """Return the straggler; None if there is none, or if there are too few chunks.

    Args:
        counts: number of chunks for which a rank was the last, by rank.
        waits: total time that those chunks waited, in seconds, by rank.
        world_size: number of the job's ranks.
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

    A rank that begins late is the last for as many chunks as the credit allows in flight. Any rank may be
    last for later chunks. Arguments and result are those of `straggler`.
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
        parts: status of the job at each reducer process, now and before; None counts from the job's start.
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

"""Cut first, then deal: which bytes are a chunk, and which reducer owns it.

A collective is cut into chunks of equal size. The size depends on nothing but the collective's own
size and the configuration's `chunk_bytes`. The chunks are then dealt to the reducers in contiguous
runs, the shards. Losing a reducer changes owners and never a chunk's borders, so results from before
and after fit together.

Dealing starts at member `seq mod k`. So chunk 0 of every collective goes to a member that all ranks
know from seq alone, and an empty collective has just that chunk. Two ranks that disagree on size or
type always meet at that member and get an error, and small collectives spread over all reducers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from reduction.limits import CHARGE_BYTES_MIN, CHUNK_BYTES_MULTIPLE, KIB, MIB

#: A collective smaller than this is cut finer than `chunk_bytes`, into as many chunks as a
#: collective of this size has. Otherwise it would go to few reducers, whose links would carry
#: several times their share, and no result would come back while the rest is still on its way.
SMALL_BYTES = 2 * MIB
#: A small collective is cut into at least this many chunks if they are large enough, but no chunk
#: is smaller than `chunk_bytes` by more than this factor: each message costs CPU, and `chunk_bytes`
#: was chosen to be as large as the links are fast.
SMALL_CHUNKS = 4
#: A small collective is not cut into chunks smaller than this, whatever `chunk_bytes` is.
SMALL_CHUNK_BYTES_MIN = 16 * KIB


@lru_cache(maxsize=4096)  # called for every chunk
def grid_bytes(nbytes: int, chunk_bytes: int) -> int:
    """Return the chunk size of a collective of `nbytes`: `chunk_bytes`, or less if it is small."""
    least = max(SMALL_CHUNK_BYTES_MIN, chunk_bytes // SMALL_CHUNKS)
    chunks = max(1, min(nbytes // least, max(SMALL_BYTES // chunk_bytes, SMALL_CHUNKS)))
    units = max(1, -(-nbytes // (chunks * CHUNK_BYTES_MULTIPLE)))
    return min(chunk_bytes, units * CHUNK_BYTES_MULTIPLE)


def chunk_count(numel: int, itemsize: int, chunk_bytes: int) -> int:
    """Return the number of chunks of a collective; an empty one has one empty chunk."""
    total = numel * itemsize
    return max(1, -(-total // grid_bytes(total, chunk_bytes)))


def chunk_range(chunk: int, numel: int, itemsize: int, chunk_bytes: int) -> tuple[int, int]:
    """Return the byte range [start, stop) of a chunk within its collective."""
    total = numel * itemsize
    size = grid_bytes(total, chunk_bytes)
    start = min(chunk * size, total)
    return start, min(start + size, total)


def deal(chunks: int, weights: tuple[int, ...], seq: int) -> tuple[range, ...]:
    """Return each member's run of chunks, in member order.

    Runs follow each other from member `seq mod k` on; the first is never empty. Sizes follow the weights
    with each border rounded up.
    """
    return _deal(chunks, weights, seq % len(weights))


@lru_cache(maxsize=4096)  # called for every push; a training run repeats the same few collectives
def _deal(chunks: int, weights: tuple[int, ...], first: int) -> tuple[range, ...]:
    total = sum(weights)
    runs = [range(0)] * len(weights)
    start = cumulative = 0
    for step in range(len(weights)):
        member = (first + step) % len(weights)
        cumulative += weights[member]
        stop = -(-chunks * cumulative // total)
        runs[member] = range(start, stop)
        start = stop
    return tuple(runs)


def charge(nbytes: int) -> int:
    """Return what a push of `nbytes` payload takes from the credit."""
    return max(nbytes, CHARGE_BYTES_MIN)


def fingerprint(numbers: Iterable[int]) -> int:
    """Return a 64-bit hash of a shape or bucket layout, the same in every process."""
    text = ",".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

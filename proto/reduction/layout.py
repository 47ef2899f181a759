"""Cut first, then deal: which bytes are a chunk, and which reducer owns it.

A collective is cut into chunks on a grid that depends on nothing but its size and the configuration's
`chunk_bytes`, finer if it is small; the chunks are then dealt to the reducers in contiguous runs, the shards.
Losing a reducer changes owners and never a chunk's borders, so results from before and after fit together.

Dealing starts at member `seq mod k`. So chunk 0 of every collective, and an empty collective has just that
one, goes to a member that all ranks know from seq alone: two ranks that disagree on size or type always
meet there and get an error, and small collectives spread over all reducers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from reduction.limits import CHARGE_BYTES_MIN, CHUNK_BYTES_MULTIPLE, KIB, MIB

#: A smaller collective is cut finer: else it would go to few reducers, whose links then carry n times what they could,
#: and no result would come back while the rest is on its way. Into as many pieces as there are chunks in so much,
SMALL_BYTES = 2 * MIB
#: or into so many, if that is more. But each message costs CPU: no finer than a chunk by so much, because chunks are as
#: large as the links are fast,
PIECES = 4
#: and no finer than this.
PIECE_BYTES_MIN = 16 * KIB


@lru_cache(maxsize=4096)  # asked for with every chunk
def grid_bytes(nbytes: int, chunk_bytes: int) -> int:
    """Return the chunk size of a collective of `nbytes`: `chunk_bytes`, or less if it is small."""
    least = max(PIECE_BYTES_MIN, chunk_bytes // PIECES)
    pieces = max(1, min(nbytes // least, max(SMALL_BYTES // chunk_bytes, PIECES)))
    units = max(1, -(-nbytes // (pieces * CHUNK_BYTES_MULTIPLE)))
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


@lru_cache(maxsize=4096)  # asked for once per push, and a training run repeats the same few collectives
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

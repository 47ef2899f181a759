"""Map bytes to chunks, and chunks to the reducers that own them.

A collective is cut into chunks of equal size. The size depends only on the collective's own size and
the configuration's `chunk_bytes`. The chunks are then dealt to the reducers in contiguous runs, the
shards. Losing a reducer changes owners but never a chunk's borders, so results from before and after
fit together.

Dealing begins at a member determined by seq and the weights, which changes from collective to
collective. So all ranks send chunk 0 to the same member, and an empty collective has just that
chunk. Two ranks that disagree on size or type always meet there and get an error, and small
collectives spread over all reducers.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from reduction.limits import CHARGE_BYTES_MIN, CHUNK_BYTES_MULTIPLE, KIB, MIB

#: A collective smaller than this is cut finer than `chunk_bytes`, into as many chunks as a
#: collective of this size has. Otherwise it would go to few reducers, whose links would carry
#: several times their share, and no result would return while the rest is still in flight.
SMALL_BYTES = 2 * MIB
#: A small collective is cut into at least this many chunks if they are large enough. No chunk is
#: smaller than `chunk_bytes` by more than this factor, because each message costs CPU and
#: `chunk_bytes` was chosen to suit the speed of the links.
SMALL_CHUNKS = 4
#: A small collective is not cut into chunks smaller than this, whatever `chunk_bytes` is.
SMALL_CHUNK_BYTES_MIN = 16 * KIB
#: Fraction of the circle between the starts of successive collectives, if weights differ.
_GOLDEN_SECTION = 0.618


@lru_cache(maxsize=4096)  # called for every chunk
def grid_bytes(nbytes: int, chunk_bytes: int) -> int:
    """Return the chunk size of a collective of `nbytes`, which is `chunk_bytes`, or less if it is small."""
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

    The members are arcs of a circle, each as long as its weight. A collective's chunks go round the
    circle once, from a place that depends only on `seq` and the weights. The member at this place has
    the first run, which is never empty. In one collective, only this member may get a whole chunk more
    than its share. Over many collectives all members get their shares.
    """
    circle = _circle(weights)
    return _deal(chunks, weights, seq * circle.step % circle.borders[-1])


@dataclass(frozen=True, slots=True)
class _Circle:
    """The members as arcs of a circle."""

    #: Where each member's arc begins, and the length of the circle.
    borders: tuple[int, ...]
    #: Distance between the starts of successive collectives. The steps reach every place.
    step: int


@lru_cache(maxsize=256)
def _circle(weights: tuple[int, ...]) -> _Circle:
    divisor = math.gcd(*weights)
    borders = (0, *accumulate(weight // divisor for weight in weights))
    length = borders[-1]
    if len(set(weights)) == 1:
        return _Circle(borders, 1)  # successive collectives begin at successive members
    # Golden-section steps keep the starting places of a few successive collectives far apart.
    step = round(length * _GOLDEN_SECTION)
    while math.gcd(step, length) > 1:
        step += 1
    return _Circle(borders, step)


@lru_cache(maxsize=256)  # called for the same collective by every lane, or for every push
def _deal(chunks: int, weights: tuple[int, ...], place: int) -> tuple[range, ...]:
    borders = _circle(weights).borders
    length = borders[-1]
    first = bisect_right(borders, place) - 1
    runs = [range(0)] * len(weights)
    # The place splits the first arc. Its member gets both parts as one run, at the beginning.
    others = [(first + turn) % len(weights) for turn in range(1, len(weights))]
    counts = [
        _rounded_up((borders[member + 1] - place) % length or length, chunks, length)
        - _rounded_up((borders[member] - place) % length, chunks, length)
        for member in others
    ]
    start = chunks - sum(counts)
    runs[first] = range(start)
    for member, count in zip(others, counts, strict=True):
        runs[member] = range(start, start + count)
        start += count
    return tuple(runs)


def _rounded_up(place: int, chunks: int, length: int) -> int:
    """Return how many chunks begin before a place on the circle."""
    return -(-place * chunks // length)


def charge(nbytes: int) -> int:
    """Return the credit that a push of `nbytes` payload takes."""
    return max(nbytes, CHARGE_BYTES_MIN)


def fingerprint(numbers: Iterable[int]) -> int:
    """Return a 64-bit hash of a shape or bucket layout, the same in every process."""
    text = ",".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

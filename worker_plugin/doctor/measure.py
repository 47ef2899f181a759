"""How fast tensors are summed: the size of the sums, and how long to measure."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

#: Fraction of a measurement that is ignored, and its minimum in seconds, while TCP and the credit find the rate.
BEGINNING, BEGINNING_S = 0.25, 0.2
#: Approximate length of a block in seconds, and as a fraction of the longest measurement. After each block the ranks
#: ask each other whether the rate has settled.
BLOCK_S, BLOCK_PART = 0.25, 0.2
#: The rate has settled if its values in both halves differ by less than this fraction, and each half lasts about a
#: block.
SETTLED_PART = 0.04
#: Minimum and maximum bytes of a sum, and the number of sums in flight.
PIECE_LEAST, PIECE_MOST, DEPTH = 64 << 10, 8 << 20, 4
#: Target duration of a sum, in seconds.
PIECE_S = 0.03
#: While the rate is estimated, each sum has this many times the bytes of the previous one.
GROWTH = 4

Submit = Callable[[torch.Tensor], torch.futures.Future[Any]]
Agree = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """One rate of one rank."""

    bytes_per_s: float
    resent: float


def measure(submit: Submit, seconds: float, agree: Agree) -> Measured:
    """Return the number of tensor bytes summed per second, after an initial part that is ignored.

    Ends when the rate has settled, or after `seconds`.

    Args:
        submit: issues the sum of a tensor; all ranks issue the same ones.
        seconds: approximate maximum duration.
        agree: returns the minimum of all ranks' numbers; the ranks call it equally often.
    """
    guess = _guess(submit, agree)
    nbytes = int(max(min(guess * PIECE_S, PIECE_MOST), PIECE_LEAST)) // 4 * 4
    block_s = min(BLOCK_S, BLOCK_PART * seconds)
    # All ranks count in pieces, because they have to issue the same ones.
    each_s = nbytes / guess
    beginning = max(DEPTH, int(BEGINNING_S / each_s))
    # Gloo completes sums in pairs, so a block has an even number of them.
    block = max(1, int(block_s / each_s / 2)) * 2
    pieces = Pieces(submit, nbytes)
    pieces.pass_by(beginning)
    before = _segments()
    pieces.pass_by(block)
    is_enough = False
    while not is_enough:
        pieces.pass_by(block)
        first = max(beginning, int(BEGINNING * pieces.done))
        is_enough = pieces.has_settled(first, block_s) or pieces.seconds(1, pieces.done) >= seconds
        # The links stay busy in the meantime, because some sums are in flight.
        is_enough = agree(float(is_enough)) > 0
    pieces.finish()
    sent, resent = (after - earlier for after, earlier in zip(_segments(), before, strict=True))
    return Measured(pieces.rate(first, pieces.done), resent / sent if sent > 0 else 0.0)


class Pieces:
    """A stream of equal sums, some of which are always in flight.

    Args:
        submit: as for `measure`.
        nbytes: of each sum.
    """

    def __init__(self, submit: Submit, nbytes: int) -> None:
        self._submit = submit
        self._nbytes = nbytes
        # Sums of zeros are zeros, so the tensors need not be refilled, which would take time.
        self._tensors = deque(torch.zeros(nbytes // 4) for _ in range(DEPTH))
        self._under_way: deque[torch.futures.Future[Any]] = deque()
        #: When each sum was done. The completing thread records it, because ours may be waiting for other ranks.
        self._news: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._times: list[float] = []
        while len(self._under_way) < DEPTH:
            self._issue()

    @property
    def done(self) -> int:
        """Number of completed sums."""
        return len(self._times)

    def pass_by(self, count: int) -> None:
        """Wait for `count` more sums, and issue as many. Raises the error of a failed sum."""
        for _ in range(count):
            self._end_one()
            self._issue()

    def finish(self) -> None:
        """Wait for the sums in flight."""
        while self._under_way:
            self._end_one()

    def seconds(self, first: int, end: int) -> float:
        """Return the seconds from sum `first` up to but excluding sum `end`, counted from 0. Sum 0 has no time."""
        return max(self._times[end - 1] - self._times[first - 1], 1e-9)

    def rate(self, first: int, end: int) -> float:
        """Return the bytes per second of these sums."""
        return (end - first) * self._nbytes / self.seconds(first, end)

    def has_settled(self, first: int, block_s: float) -> bool:
        """Return whether both halves of the sums since `first` have similar rates; each takes about `block_s`."""
        middle = (first + self.done) // 2
        earlier, later = self.rate(first, middle), self.rate(middle, self.done)
        is_long = self.seconds(first, self.done) > 1.6 * block_s
        return is_long and abs(later - earlier) < SETTLED_PART * later

    def _issue(self) -> None:
        tensor = self._tensors[0]
        self._tensors.rotate(-1)
        future = self._submit(tensor)
        future.add_done_callback(lambda _: self._news.put(time.monotonic()))
        self._under_way.append(future)

    def _end_one(self) -> None:
        self._times.append(self._news.get())
        self._under_way.popleft().wait()


def _guess(submit: Submit, agree: Agree) -> float:
    """Return roughly how many bytes per second are summed. Takes a few times PIECE_S."""
    nbytes, rate = PIECE_LEAST, agree(_once(submit, PIECE_LEAST))
    # For small sums the round trip dominates, so their rate is far too low on a fast link.
    while nbytes < PIECE_MOST and nbytes < rate * PIECE_S:
        nbytes = min(GROWTH * nbytes, 4 * PIECE_MOST)
        rate = agree(_once(submit, nbytes))
    # A link may take the first bytes faster than it can sustain.
    nbytes = int(max(min(2 * rate * PIECE_S, 4 * PIECE_MOST), PIECE_LEAST))
    return agree(_once(submit, nbytes))


def _once(submit: Submit, nbytes: int) -> float:
    """Return the bytes per second of one sum."""
    tensor = torch.zeros(nbytes // 4)
    began = time.monotonic()
    submit(tensor).wait()
    return nbytes / (time.monotonic() - began)


def _segments() -> tuple[int, int]:
    """Return the TCP segments that this host has sent and retransmitted; zeros if the kernel does not report them."""
    try:
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    except OSError:
        return 0, 0
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    table = dict(zip(names, values, strict=True))
    return int(table["OutSegs"]), int(table["RetransSegs"])

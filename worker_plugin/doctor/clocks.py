"""Clock offsets between ranks: pings over torch.distributed, evaluated with NTP's formula.

There are four times: ours when we ask (a) and hear (d), and rank 0's when it hears (b) and answers (c). Our clock is
ahead of rank 0's by ((a - b) + (d - c)) / 2, with an error of at most half the round-trip time (RFC 5905, section 8).
Of several pings the one with the shortest round trip counts.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

PINGS = 8


def offset_to_rank_0(rank: int, ranks: int) -> tuple[float, float]:
    """Return how far this rank's clock is ahead of rank 0's, and the maximum error of that, in seconds.

    All ranks call this at the same time.

    Raises:
        RuntimeError: a connection failed.
    """
    if rank == 0:
        for other in range(1, ranks):
            for _ in range(PINGS):
                _answer(other)
        return 0.0, 0.0
    pings = [_ask() for _ in range(PINGS)]
    error, offset = min(pings)
    return offset, error


def _ask() -> tuple[float, float]:
    """Return half of the round-trip time, and the offset."""
    message = torch.zeros(2, dtype=torch.int64)
    asked = time.time_ns()
    dist.send(message, 0)
    dist.recv(message, 0)
    heard = time.time_ns()
    came, went = message.tolist()
    return ((heard - asked) - (went - came)) / 2e9, ((asked - came) + (heard - went)) / 2e9


def _answer(rank: int) -> None:
    message = torch.zeros(2, dtype=torch.int64)
    dist.recv(message, rank)
    message[0] = time.time_ns()
    message[1] = time.time_ns()
    dist.send(message, rank)

"""The share of every collective that each reducer should own, so that all links of a job finish together.

Machine i has g_i of the n ranks, and a link that carries b_i bytes per second each way. Its reducers
own the part y_i of every collective of M bytes. Each way, its link carries the pushes of its ranks to
other machines, and the results that its reducers send to other machines' ranks:

    g_i (1 - y_i) M + (n - g_i) y_i M = (g_i + (n - 2 g_i) y_i) M

Results and pushes in the other direction are as many bytes. The shares add up to 1, so t is the
smallest time for which no link takes longer:

    g_i + (n - 2 g_i) y_i <= t b_i / M      for all i

A machine without ranks, a remote reducer, has g_i = 0 and takes y_i = t b_i / (n M). With one rank
on each of n machines, k remote reducers, and equal links of B this is

    t = max(1, 2 n (n - 1) / (n^2 + k n - 2 k)) M / B

Without reducers this is a ring's time, 2 (n - 1) / n M / B, and with k = n it is M / B. No schedule
that adds and spreads each element along a tree is faster: Jiang et al., "A Unified Architecture for
Accelerating Distributed DNN Training" (BytePS), OSDI 2020, Theorem 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A part of a collective that is only a rounding error.
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a job."""

    #: Number of ranks on the machine.
    ranks: int
    #: Number of reducer processes on the machine.
    reducers: int
    #: Bytes per second that its link carries each way, in any unit that is the same for all machines.
    rate: float = 1.0

    @property
    def is_remote(self) -> bool:
        """Whether the machine has reducers and no ranks."""
        return self.reducers > 0 and self.ranks == 0

    @property
    def is_colocated(self) -> bool:
        """Whether the machine has both reducers and ranks."""
        return self.reducers > 0 and self.ranks > 0


@dataclass(frozen=True, slots=True)
class Split:
    """The best split of every collective among machines."""

    #: The time of one byte of a collective, in the unit of 1 / rate; 0 if no link is used.
    seconds_per_byte: float
    #: The part that the reducers of each machine own. The parts add up to 1.
    shares: tuple[float, ...]


def ring_time(machines: Sequence[Machine]) -> float:
    """Return the time that a ring takes for one byte of a tensor, in the unit of 1 / rate.

    Every machine with ranks sends 2 (n - 1) / n bytes for it, and the slowest one decides. A single
    machine needs no link.
    """
    workers = [machine for machine in machines if machine.ranks]
    ranks = sum(machine.ranks for machine in workers)
    return 0.0 if len(workers) < 2 else 2 * (ranks - 1) / ranks / min(machine.rate for machine in workers)


def split(machines: Sequence[Machine]) -> Split:
    """Return the split that minimises the time of a collective.

    Args:
        machines: machines of the job; at least one has ranks, and at least one has reducers.
    """
    ranks = sum(machine.ranks for machine in machines)
    for machine in machines:
        if machine.reducers and 2 * machine.ranks > ranks:
            # Each additional byte that is reduced here is one less on every link.
            return _split(machines, [float(other is machine) for other in machines])
    # If a machine has half of all ranks, its link carries the same whatever its reducers own.
    halves = [float(machine.reducers > 0 and 2 * machine.ranks == ranks) for machine in machines]
    reducing = [machine for machine in machines if machine.reducers]
    time = max(machine.ranks / machine.rate for machine in machines)
    if not any(halves):
        # The shares (t b - g) / (n - 2 g) add up to 1.
        per_time = sum(machine.rate / (ranks - 2 * machine.ranks) for machine in reducing)
        without_time = sum(machine.ranks / (ranks - 2 * machine.ranks) for machine in reducing)
        time = max(time, (1 + without_time) / per_time)
    # Remote reducers come first, because their shares cost the machines with ranks nothing.
    remote = [time * machine.rate / ranks * machine.is_remote for machine in machines]
    if any(halves):
        colocated = halves
    else:
        colocated = [
            max(0.0, time * machine.rate - machine.ranks) / (ranks - 2 * machine.ranks)
            if machine.is_colocated
            else 0.0
            for machine in machines
        ]
    rest, room = 1.0 - sum(remote), sum(colocated)
    if rest <= _NOTHING or room <= 0.0:
        return _split(machines, [share / sum(remote) for share in remote])
    return _split(machines, [far + rest * near / room for far, near in zip(remote, colocated, strict=True)])


def _split(machines: Sequence[Machine], shares: Sequence[float]) -> Split:
    """Return a split, with the time that these shares take."""
    ranks = sum(machine.ranks for machine in machines)
    times = (
        (machine.ranks + (ranks - 2 * machine.ranks) * share) / machine.rate
        for machine, share in zip(machines, shares, strict=True)
    )
    return Split(max(times), tuple(shares))

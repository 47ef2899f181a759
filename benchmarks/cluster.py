"""Ranks and reducers of one shape, running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from benchmarks.ranks import Ranks
from benchmarks.reducers import Reducers
from benchmarks.traffic import Link, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many processes, and where."""

    workers: int
    reducers: int
    device: str = "cpu"
    #: How the links of all hosts are shaped; None is loopback.
    link: Link | None = None

    @property
    def name(self) -> str:
        """As in test ids."""
        return f"n{self.workers}-k{self.reducers}-{self.device}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running processes of a shape."""

    shape: Shape
    ranks: Ranks
    reducers: Reducers

    def traffic(self) -> Traffic:
        """Return what went over the links until now; loopback is not counted."""
        return Traffic()


@contextmanager
def running(shape: Shape) -> Iterator[Cluster]:
    """Start the processes of a shape, and end them."""
    with (
        closing(Reducers(shape.reducers)) as reducers,
        closing(Ranks(shape.workers, reducers.addresses, device=shape.device)) as ranks,
    ):
        yield Cluster(shape, ranks, reducers)

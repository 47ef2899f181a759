"""One accumulation. Contributions may arrive in any order, and are folded in rank order.

The first push of a chunk opens its slot, which ends with its Publish or with the epoch. A
contribution that arrives before those of lower ranks waits, so the sum is a pure function of the
contributions. This module never looks into payloads.
"""

from __future__ import annotations

from reduction import layout
from reduction.errors import CollectiveMismatch, MalformedFrame, OutOfOrder
from reduction.model import Collective, Configuration, Push


class Slot:
    """The contributions to one chunk of one collective."""

    __slots__ = (
        "collective",
        "first_rank",
        "folded",
        "kept",
        "layout_bytes",
        "nbytes",
        "opened_at",
        "world_size",
    )

    def __init__(
        self,
        collective: Collective,
        layout_bytes: int,
        nbytes: int,
        first_rank: int,
        world_size: int,
        opened_at: float = 0.0,
    ) -> None:
        self.collective = collective
        #: Bytes of the chunk as the layout counts them.
        self.layout_bytes = layout_bytes
        #: Payload bytes of the first contribution.
        self.nbytes = nbytes
        self.first_rank = first_rank
        self.world_size = world_size
        #: When the first push arrived.
        self.opened_at = opened_at
        #: The accumulator has the contributions of all ranks below this one.
        self.folded = 0
        #: Contributions that wait for lower ranks. The rank `folded` is never among them.
        self.kept: dict[int, memoryview] = {}

    @property
    def missing(self) -> int:
        """Number of missing contributions. If it is one, the missing rank is `folded`."""
        return self.world_size - self.folded - len(self.kept)

    def expects(self, collective: Collective, nbytes: int) -> bool:
        """Return whether a contribution matches the first one, whose chunk was checked."""
        # Equal collectives are usually the same object. Comparing them by value takes longer than
        # the rest of a push.
        return nbytes == self.nbytes and (collective is self.collective or collective == self.collective)

    def has(self, rank: int) -> bool:
        """Return whether the rank has contributed."""
        return rank < self.folded or rank in self.kept

    def on_push(self, rank: int, collective: Collective, payload: memoryview) -> tuple[memoryview, ...]:
        """Take a contribution and return the payloads that can be folded now, in rank order.

        Raises:
            CollectiveMismatch: this rank and the slot's first rank disagree on the collective or on the
                amount of data per block; the slot is unchanged.
            OutOfOrder: this rank has already contributed; the slot is unchanged.
        """
        if collective is not self.collective and collective != self.collective:
            raise CollectiveMismatch(
                f"rank {rank} issued {collective}, but rank {self.first_rank} issued {self.collective}"
            )
        if payload.nbytes != self.nbytes:
            # For equal collectives, only the number of elements kept per block can differ.
            least, _ = collective.dtype.format.push_sizes(self.layout_bytes)
            raise CollectiveMismatch(
                f"rank {rank} sends {payload.nbytes // least} elements of each block of "
                f"{collective.dtype.format.block} as {collective.dtype.name}, but rank {self.first_rank} "
                f"sends {self.nbytes // least}: set the same wire_dtype on all ranks"
            )
        if self.has(rank):
            raise OutOfOrder(f"rank {rank} pushed the same chunk twice in one epoch")
        if rank != self.folded:
            self.kept[rank] = payload
            return ()
        ready = [payload]
        self.folded += 1
        while self.folded in self.kept:
            ready.append(self.kept.pop(self.folded))
            self.folded += 1
        return tuple(ready)


def check_chunk(rank: int, push: Push, configuration: Configuration, index: int) -> int:
    """Check that a chunk exists, belongs to member `index` of the configuration, and has its size.

    Returns:
        The bytes of the chunk as the layout counts them.

    Raises:
        MalformedFrame: one of these checks failed.
    """
    collective = push.collective
    itemsize = collective.dtype.itemsize
    chunks = layout.chunk_count(collective.numel, itemsize, configuration.chunk_bytes)
    run = layout.deal(chunks, configuration.weights, push.seq)[index]
    if push.chunk not in run:
        raise MalformedFrame(
            f"rank {rank} pushed chunk {push.chunk} of collective {push.seq} ({collective}) to the reducer "
            f"of chunks {run.start} to {run.stop - 1} of {chunks}"
        )
    start, stop = layout.chunk_range(push.chunk, collective.numel, itemsize, configuration.chunk_bytes)
    if not collective.dtype.format.is_push(push.payload.nbytes, stop - start):
        least, most = collective.dtype.format.push_sizes(stop - start)
        raise MalformedFrame(
            f"rank {rank} pushed {push.payload.nbytes} bytes as chunk {push.chunk} of collective "
            f"{push.seq} ({collective}), but the chunk has {least}"
            + (f" to {most}, a multiple of {least}" if least < most else "")
        )
    return stop - start

"""The cost of many ranks joining many reducers, with the real cores and the real encoding but without a network.

    python -m benchmarks.micro.crowd --ranks 1024 --reducers 16

All ranks join at the same time and in the same order. That is the worst case for rank 0, which receives
a message about each rank from each reducer. Prints the time until the epoch has started on all ranks,
rank 0's part of it, and the traffic to rank 0 from the reducer that sent most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reduction import wire
from reduction.model import Hello

from benchmarks.method.experiment import Line
from reducer.core import actions as reducer_actions
from reducer.core import events as reducer_events
from reducer.core.jobs import Jobs
from worker_plugin.core import actions as rank_actions
from worker_plugin.core import events as rank_events
from worker_plugin.core.identity import Identity
from worker_plugin.core.rank import RankCore

#: A typical host name of a cloud machine; longer names make longer frames.
HOST = "ip-10-0-113-27.ec2.internal"
TICK_S = 0.04


@dataclass
class Tally:
    """The time, bytes and frames of a run."""

    seconds: float = 0.0
    #: Seconds in rank 0's core, including decoding.
    rank_0_seconds: float = 0.0
    #: Bytes and frames for rank 0 from the reducer that sent most.
    rank_0_bytes: int = 0
    rank_0_frames: int = 0
    #: Number of different epochs that ranks have announced.
    epochs: int = 0
    members: int = 0
    by_reducer: dict[int, list[int]] = field(default_factory=dict)


class Crowd:
    """The cores of n ranks and k reducers. Frames arrive in the order in which they were sent."""

    def __init__(self, ranks: int, reducers: int) -> None:
        addresses = [f"10.0.0.{number}:50051" for number in range(reducers)]
        self.reducers = [
            Jobs(incarnation=number.to_bytes(16), memory_limit_bytes=1 << 50) for number in range(reducers)
        ]
        self.ranks = [RankCore(self._identity(rank, ranks), addresses) for rank in range(ranks)]
        self.tally = Tally(by_reducer={number: [0, 0] for number in range(reducers)})
        #: Frames in flight: rank, reducer, whether it is for the reducer, and the frame.
        self._wire: deque[tuple[int, int, bool, bytes]] = deque()
        self._epochs: set[int] = set()

    @staticmethod
    def _identity(rank: int, world_size: int) -> Identity:
        return Identity(
            job="crowd",
            instance=b"" if rank else b"i" * 16,
            nonce=rank.to_bytes(16),
            host=HOST,
            rank=rank,
            world_size=world_size,
            chunk_bytes=None,
            credit_bytes=None,
            timeout_s=600.0,
            stall_warn_s=5.0,
            join_timeout_s=60.0,
            close_timeout_s=5.0,
        )

    def run(self) -> Tally:
        """Let all ranks join, and return the time and the traffic."""
        begin, now = time.perf_counter(), 0.0
        while not all(self._has_started(core) for core in self.ranks):
            for rank in range(len(self.ranks)):
                self._to_rank(rank, rank_events.Tick(), now)
            for reducer in range(len(self.reducers)):
                self._to_reducer(reducer, reducer_events.Tick(), now)
            while self._wire:
                self._arrive(*self._wire.popleft(), now)
            now += TICK_S
        tally = self.tally
        tally.seconds = time.perf_counter() - begin
        tally.rank_0_bytes, tally.rank_0_frames = max(map(tuple, tally.by_reducer.values()))
        tally.epochs = len(self._epochs)
        configuration = self.ranks[0].epochs.configuration
        tally.members = 0 if configuration is None else len(configuration.members)
        return tally

    @staticmethod
    def _has_started(core: RankCore) -> bool:
        return core.epochs.is_calm

    def _arrive(self, rank: int, reducer: int, is_up: bool, data: bytes, now: float) -> None:
        if is_up:
            frame = wire.worker_frame_from_wire(data)
            if isinstance(frame, Hello):
                self._epochs.add(frame.configuration.epoch)
            self._to_reducer(reducer, reducer_events.Received(rank, frame), now)
            return
        begin = time.perf_counter()
        answer = wire.reducer_frame_from_wire(data)
        if rank == 0:
            count = self.tally.by_reducer[reducer]
            count[0] += len(data)
            count[1] += 1
        self._to_rank(rank, rank_events.Received(reducer, answer), now)
        if rank == 0:
            self.tally.rank_0_seconds += time.perf_counter() - begin

    def _to_rank(self, rank: int, event: Any, now: float) -> None:
        for action in self.ranks[rank].handle(event, now):
            match action:
                case rank_actions.Open(link, _, join):
                    self._wire.append((rank, link, True, wire.worker_frame_to_wire(join)))
                case rank_actions.Send(link, frame):
                    self._wire.append((rank, link, True, wire.worker_frame_to_wire(frame)))
                case rank_actions.Fail(error):
                    raise error

    def _to_reducer(self, reducer: int, event: Any, now: float) -> None:
        for action in self.reducers[reducer].handle(event, now):
            if isinstance(action, reducer_actions.Send):
                data = wire.reducer_frame_to_wire(action.frame)
                self._wire.append((action.stream, reducer, False, data))


def main(arguments: Sequence[str] | None = None) -> None:
    line = Line("micro.crowd", __doc__, reducers=16)
    line.add_argument("--ranks", type=int, default=1024)
    options = line.parse_args(arguments)
    tally = Crowd(options.ranks, options.reducers).run()
    print(
        f"{options.ranks} ranks, {options.reducers} reducers: {tally.seconds:.1f} s until all have started, "
        f"{tally.rank_0_seconds:.1f} s of it rank 0's; a reducer sends rank 0 {tally.rank_0_frames} frames, "
        f"{tally.rank_0_bytes / 2**20:.2f} MiB; {tally.epochs} configuration(s) with {tally.members} members"
    )


if __name__ == "__main__":
    main()

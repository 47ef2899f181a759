"""Reduce a GPU's gradients over loopback: each stage alone, and all stages together. Not run on a GPU yet.

    python -m benchmarks.gpu.pipeline --workers 2 --reducers 2 --size 1024MiB --bucket 25MiB
    python -m benchmarks.gpu.pipeline --device cpu --size 64MiB     # the tool itself, without a GPU

Four contenders take turns. `down` copies the buckets to page-locked host memory. `network` reduces
tensors of that size on the CPU. `up` copies them back to the GPU. `all` reduces buckets on the GPU,
issued one after the other as in a backward pass. The time of `all` is the time of a step without
computation. `x slowest` is its ratio to the slowest stage, as the median and quartiles over neighbouring
turns. Every whole result is compared with the exact sum.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.lab.cluster import running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import Rank
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.experiment import Line, effort_of, shape_of, size
from benchmarks.method.paired import Measurement, Sample, compare, timed
from benchmarks.method.table import markdown

STAGES = ("down", "network", "up")
_ALL = "all"


class Pipeline(AllReduce):
    """`count` buckets of `numel` float32 each, on the rank's device."""

    def __init__(self, rank: Rank, numel: int, count: int) -> None:
        super().__init__(rank, numel, count)
        is_on_gpu = rank.device.type == "cuda"
        self._host = [torch.empty(numel, pin_memory=is_on_gpu) for _ in range(count)]
        self._is_reduced = False

    def run(self, contender: str, start_at: float) -> Sample:
        """Do one stage of all buckets, or all stages."""
        self._is_reduced = contender == _ALL
        return timed([getattr(self, f"_{contender}")], start_at)

    def verify(self) -> None:
        """Check the sums."""
        if self._is_reduced:
            super().verify()

    def _down(self) -> None:
        for host, tensor in zip(self._host, self._tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        self._rank.synchronize()

    def _up(self) -> None:
        for host, tensor in zip(self._host, self._tensors, strict=True):
            tensor.copy_(host, non_blocking=True)
        self._rank.synchronize()

    def _network(self) -> None:
        self._reduce(self._host)

    def _all(self) -> None:
        self._reduce(self._tensors)

    def _reduce(self, tensors: list[torch.Tensor]) -> None:
        for future in [self._rank.states["tcp"].all_reduce(tensor) for tensor in tensors]:
            future.wait()
        self._rank.synchronize()


def lines(measured: dict[str, Measurement], nbytes: int) -> list[str]:
    """Return the table."""
    slowest = max(STAGES, key=lambda name: measured[name].turn_s)
    low, median, high = measured[slowest].times_as_fast_as(measured[_ALL])
    cells = [
        [name, f"{1e3 * measurement.turn_s:.0f}", f"{1e-9 * nbytes / measurement.turn_s:.2f}"]
        for name, measurement in measured.items()
    ]
    table = markdown(["", "ms", "GB/s"], cells)
    return [*table, "", f"all: {median:.2f} ({low:.2f}-{high:.2f}) x slowest, which is {slowest}"]


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Line("gpu.pipeline", __doc__, workers=2, reducers=2, device="cuda", size="1024MiB", rounds=5)
    parser.add_argument("--bucket", type=size, default="25MiB")
    arguments = parser.parse_args(given)
    if not 4 <= arguments.bucket <= arguments.size:
        parser.error("a bucket has 4 bytes at least, and is no larger than --size")
    return arguments


def main() -> None:
    arguments = parse()
    count = arguments.size // arguments.bucket
    nbytes = count * (arguments.bucket // 4) * 4
    shape = shape_of(arguments, sockets=True)
    with ending_well("gpu_pipeline"), running(shape) as cluster:
        cluster.ranks.load(Pipeline, arguments.bucket // 4, count)
        measured = compare(cluster, [*STAGES, _ALL], effort_of(arguments))
    print(f"n={shape.workers} k={shape.reducers}, {count} buckets, {nbytes} bytes, loopback, {shape.device}")
    print("\n".join(lines(measured, nbytes)))


if __name__ == "__main__":
    main()

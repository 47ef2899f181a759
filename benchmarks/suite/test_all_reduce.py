"""All-reduces of several sizes: reducers against the ring of torch.distributed, in turn on the same ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.lab.cluster import Cluster
from benchmarks.lab.ranks import TRANSPORTS
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.paired import Effort, compare

KIB, MIB = 1 << 10, 1 << 20

#: Bytes of a tensor, and collectives per turn.
SIZES = {
    "4KiB": (4 * KIB, 50),
    "64KiB": (64 * KIB, 40),
    "1MiB": (MIB, 12),
    "4MiB": (4 * MIB, 5),
    "16MiB": (16 * MIB, 2),
    "64MiB": (64 * MIB, 1),
    "96MiB": (96 * MIB, 1),
}
LONG = {"96MiB"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("size_bytes", "iterations"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.full] if name in LONG else [])
        for name, case in SIZES.items()
    ],
)
def test_all_reduce(
    cluster: Cluster,
    effort: Effort,
    record: Callable[..., None],
    size_bytes: int,
    iterations: int,
) -> None:
    cluster.ranks.load(AllReduce, size_bytes // 4, iterations)
    measured = compare(cluster, [*TRANSPORTS, "ring"], effort)
    record("all-reduce", size_bytes, iterations, measured)

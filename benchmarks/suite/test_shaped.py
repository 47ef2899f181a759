"""All-reduces on links of a known rate: both transports and Gloo's ring, in turn on the same ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.lab.cluster import Cluster, Shape
from benchmarks.lab.ranks import TRANSPORTS
from benchmarks.lab.traffic import Link
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.paired import Effort, compare

KIB, MIB = 1 << 10, 1 << 20

FAST, SLOW = Link(rate_mbit=500), Link(rate_mbit=200)
#: Links for small sums, which would pass in one burst of the other links; see
#: `benchmarks.lab.network`.
FINE = Link(rate_mbit=500, burst_bytes=32 * KIB)

#: The two main shapes; the second one takes long.
FOUR = Shape(workers=4, reducers=4, link=FAST)
EIGHT = Shape(workers=8, reducers=8, link=SLOW)

#: Two workers, to compare with the main shapes: the time of a ring grows with the workers, ours
#: should not.
PAIR, SLOW_PAIR = [Shape(workers=2, reducers=2, link=link) for link in (FAST, SLOW)]
MORE = [EIGHT, SLOW_PAIR]
MORE += [Shape(workers=count, reducers=count, link=SLOW) for count in (3, 4, 6)]
#: The slow links suit two cores also with eight workers.
MORE += [Shape(workers=count, reducers=count, link=Link(rate_mbit=100)) for count in (2, 8)]
#: The main shapes with other queues, since the credit must suit any.
QUEUES = [
    replace(shape, link=replace(link, latency_ms=latency_ms))
    for shape, link in ((FOUR, FAST), (EIGHT, SLOW))
    for latency_ms in (5.0, 20.0)
]

#: Bytes of a tensor and collectives per turn, to show from which size on the ring is slower.
SWEEP = {"64KiB": (64 * KIB, 20), "256KiB": (256 * KIB, 10), "1MiB": (MIB, 5), "4MiB": (4 * MIB, 2)}
SWEEP |= {"16MiB": (16 * MIB, 1)}

#: Links of a fixed rate make turns alike, so few rounds are enough.
QUICK = Effort(rounds=5, rounds_min=5, budget_s=0.0, warmup_rounds=1)
FULL = replace(QUICK, rounds=11, rounds_min=11)


def _shapes(shapes: list[Shape], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(shape, id=shape.name, marks=marks) for shape in shapes]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "cluster", _shapes([FOUR, PAIR]) + _shapes([*MORE, *QUEUES], pytest.mark.full), indirect=True
)
@pytest.mark.parametrize("size_bytes", [64 * MIB], ids=["64MiB"])
def test_large(
    cluster: Cluster, record: Callable[..., None], request: pytest.FixtureRequest, size_bytes: int
) -> None:
    _measure(cluster, record, size_bytes, 1, FULL if request.config.getoption("--full") else QUICK)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", _shapes([replace(FOUR, link=FINE)]), indirect=True)
@pytest.mark.parametrize(("size_bytes", "iterations"), SWEEP.values(), ids=SWEEP)
def test_sizes(
    cluster: Cluster,
    record: Callable[..., None],
    request: pytest.FixtureRequest,
    size_bytes: int,
    iterations: int,
) -> None:
    effort = FULL if request.config.getoption("--full") else QUICK
    _measure(cluster, record, size_bytes, iterations, effort)


def _measure(
    cluster: Cluster, record: Callable[..., None], size_bytes: int, iterations: int, effort: Effort
) -> None:
    cluster.ranks.load(AllReduce, size_bytes // 4, iterations)
    record("all-reduce", size_bytes, iterations, compare(cluster, [*TRANSPORTS, "ring"], effort))

"""Both transports and Gloo's ring on links of a known rate, in turn on the same ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.lab.cluster import Shape
from benchmarks.lab.ranks import TRANSPORTS
from benchmarks.lab.traffic import Link
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method.paired import Effort

KIB, MIB = 1 << 10, 1 << 20

FAST, SLOW, SLOWEST = (Link(rate_mbit=rate_mbit) for rate_mbit in (500, 200, 100))
#: Links for small tensors, which would fit into one burst of the other links; see
#: `benchmarks.lab.network`.
FINE = Link(rate_mbit=500, burst_bytes=32 * KIB)


def square(workers: int, link: Link) -> Shape:
    """Return a shape with as many reducers as workers."""
    return Shape(workers=workers, reducers=workers, link=link)


#: The two main shapes; the second one takes long.
FOUR, EIGHT = square(4, FAST), square(8, SLOW)
#: Includes other numbers of workers, because the time of a ring grows with the workers and ours should not. On two
#: cores, the slowest links also suit eight workers.
MORE = [
    EIGHT,
    *(square(count, SLOW) for count in (2, 3, 4, 6)),
    *(square(count, SLOWEST) for count in (2, 8)),
]
#: The main shapes with other queues, because the credit must adapt to any queue.
MORE += [
    replace(shape, link=replace(shape.link, latency_ms=latency_ms))
    for shape in (FOUR, EIGHT)
    for latency_ms in (5.0, 20.0)
]

#: Bytes of a tensor and collectives per turn, to show the size from which the ring is slower.
SWEEP = {"64KiB": (64 * KIB, 20), "256KiB": (256 * KIB, 10), "1MiB": (MIB, 5), "4MiB": (4 * MIB, 2)}
SWEEP |= {"16MiB": (16 * MIB, 1)}


def shapes(usual: list[Shape], full: list[Shape]) -> pytest.MarkDecorator:
    """Run a benchmark on the usual shapes, and with --full on more of them."""
    cases = [pytest.param(shape, id=shape.name) for shape in usual]
    cases += [pytest.param(shape, id=shape.name, marks=pytest.mark.full) for shape in full]
    return pytest.mark.parametrize("cluster", cases, indirect=True)


@pytest.mark.timeout(900)
@shapes([FOUR, square(2, FAST)], MORE)
@pytest.mark.parametrize("size_bytes", [64 * MIB], ids=["64MiB"])
def test_large(measure: Callable[..., None], is_full: bool, size_bytes: int) -> None:
    """On links of a fixed rate turns hardly vary, so a few rounds are enough."""
    effort = Effort(rounds=11 if is_full else 5, warmup_rounds=1)
    measure("all-reduce", size_bytes, effort, AllReduce, size_bytes // 4, 1)


@pytest.mark.timeout(900)
@shapes([replace(FOUR, link=FINE)], [])
@pytest.mark.parametrize(("size_bytes", "iterations"), SWEEP.values(), ids=SWEEP)
def test_sizes(measure: Callable[..., None], is_full: bool, size_bytes: int, iterations: int) -> None:
    effort = Effort(rounds=11 if is_full else 5, warmup_rounds=1)
    measure("all-reduce", size_bytes, effort, AllReduce, size_bytes // 4, iterations, iterations=iterations)


@pytest.mark.timeout(900)
@shapes([square(4, SLOW)], [square(8, SLOWEST)])
def test_training(measure: Callable[..., None], is_full: bool) -> None:
    """Measure training steps on links so slow that a step is nearly all communication, though ranks share two cores.

    Without communication a step takes less than a tenth of the time over Gloo. Two rounds do not count, because DDP
    makes new buckets after the first step.
    """
    effort = Effort(rounds=21 if is_full else 5)
    contenders = [*TRANSPORTS, "ring", "noop"]
    nbytes = gradient_bytes(NARROW["transformer"])
    measure("training step", nbytes, effort, Training, contenders, also=["noop"])

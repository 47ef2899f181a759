"""All-reduces of several sizes and DDP steps on loopback, with reducers and torch's ring in turn on the same ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.loads.all_reduce import AllReduce
from benchmarks.loads.ddp_step import DdpStep, gradient_bytes
from benchmarks.method.paired import Effort

KIB, MIB = 1 << 10, 1 << 20

#: Bytes of a tensor and collectives per turn.
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
#: Width of the layers and batch per rank. `tiny` shows the cost of the hook itself. `mlp` has 17
#: MB of gradients for about 20 ms of computation, sized for two cores.
MODELS = {"tiny": (32, 8), "mlp": (1024, 32)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("size_bytes", "iterations"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.full] if name in LONG else [])
        for name, case in SIZES.items()
    ],
)
def test_all_reduce(measure: Callable[..., None], effort: Effort, size_bytes: int, iterations: int) -> None:
    measure("all-reduce", size_bytes, effort, AllReduce, size_bytes // 4, iterations, iterations=iterations)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("width", "batch"), MODELS.values(), ids=MODELS)
def test_ddp_step(measure: Callable[..., None], effort: Effort, width: int, batch: int) -> None:
    """Measure DDP steps, including a contender without communication."""
    measure("DDP step", gradient_bytes(width), effort, DdpStep, width, batch, also=["noop"])

"""Training steps on links of a known rate: our hook on both transports, plain DDP and no communication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.lab.cluster import Cluster, Shape
from benchmarks.lab.ranks import TRANSPORTS
from benchmarks.lab.traffic import Link
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method.paired import Effort, compare

EIGHT = Shape(workers=8, reducers=8, link=Link(rate_mbit=100))

#: The links are so slow that a step is nearly all communication, although all ranks share two cores. Without
#: it a step takes less than a tenth of Gloo's.
SHAPES = [
    Shape(workers=4, reducers=4, link=Link(rate_mbit=200)),
    pytest.param(EIGHT, id=EIGHT.name, marks=pytest.mark.full),
]

#: There are two warm-up rounds, since DDP makes new buckets after the first step.
QUICK = Effort(rounds=5, rounds_min=5, budget_s=0.0, warmup_rounds=2)
FULL = replace(QUICK, rounds=21, rounds_min=21)


def _name(shape: Shape) -> str:
    return shape.name


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", SHAPES, ids=_name, indirect=True)
def test_training(cluster: Cluster, record: Callable[..., None], request: pytest.FixtureRequest) -> None:
    contenders = [*TRANSPORTS, "ring", "noop"]
    cluster.ranks.load(Training, contenders)
    effort = FULL if request.config.getoption("--full") else QUICK
    measured = compare(cluster, contenders, effort)
    record("training step", gradient_bytes(NARROW["transformer"]), 1, measured)

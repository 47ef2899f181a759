"""DDP steps over reducers, with DDP's own all-reduce and without communication, in turn on the same ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.lab.cluster import Cluster
from benchmarks.lab.ranks import TRANSPORTS
from benchmarks.loads.ddp_step import DdpStep, gradient_bytes
from benchmarks.method.paired import Effort, compare

#: Width of the layers and batch per rank. `tiny` shows the cost of the hook itself. `mlp` has 17
#: MB of gradients on about 20 ms of computing, sized for two cores.
MODELS = {"tiny": (32, 8), "mlp": (1024, 32)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("width", "batch"), MODELS.values(), ids=MODELS)
def test_ddp_step(
    cluster: Cluster, effort: Effort, record: Callable[..., None], width: int, batch: int
) -> None:
    cluster.ranks.load(DdpStep, width, batch)
    measured = compare(cluster, [*TRANSPORTS, "ring", "noop"], effort)
    record("DDP step", gradient_bytes(width), 1, measured)

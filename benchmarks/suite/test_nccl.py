"""Reducers compared with NCCL's ring on shaped links, with GPUs that ranks may share; see `benchmarks.gpu.nccl`."""

from __future__ import annotations

import pytest

from benchmarks.gpu.nccl import compare
from benchmarks.gpu.nccl_ranks import GpuMissing
from benchmarks.lab.cluster import Shape
from benchmarks.lab.network import NetworkUnavailable
from benchmarks.lab.traffic import Link
from benchmarks.method.paired import Effort
from benchmarks.method.report import Report

#: If ranks that share a GPU are too slow for the faster links, they may be fast enough for the
#: slower ones.
SHAPES = [
    Shape(workers=4, reducers=4, device="cuda", link=Link(rate_mbit=rate_mbit)) for rate_mbit in (500, 200)
]
EFFORT = Effort(rounds=5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("size_bytes", [64 << 20], ids=["64MiB"])
def test_nccl(shape: Shape, size_bytes: int, report: Report) -> None:
    try:
        report.rows.append(compare(shape, EFFORT, size_bytes))
    except (GpuMissing, NetworkUnavailable) as error:
        pytest.skip(str(error))

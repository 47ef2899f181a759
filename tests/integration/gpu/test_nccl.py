"""The NCCL benchmark on the CPU with Gloo instead of NCCL: the same sequence of turns, unshaped and on links."""

from __future__ import annotations

import pytest

from benchmarks.gpu import nccl
from benchmarks.lab.cluster import Shape
from benchmarks.lab.network import NetworkUnavailable
from benchmarks.lab.traffic import Link
from benchmarks.method.paired import Effort
from benchmarks.method.report import Report


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_benchmark_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "check_gpus", lambda _: None)
    shape = Shape(workers=2, reducers=1, link=Link(rate_mbit=20, burst_bytes=32 << 10))
    effort = Effort(rounds=2, budget_s=float("inf"), warmup_rounds=1)
    try:
        row = nccl.compare(shape, effort, 1 << 20)
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    assert list(row.measured) == list(row.unshaped_s) == ["tcp", "ring"]
    assert row.shape.link is not None
    assert row.doubts("tcp") == [], "1 MiB takes 0.4 s at least"
    assert row.doubts("ring") == [], "Gloo's ring has no log of NCCL's"
    assert "Gloo: " in (text := "\n".join(Report(rows=[row]).lines()))
    assert " ms unshaped, " in text

"""The GPU training benchmark, run on the CPU with a tiny model: the same code except for NCCL."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import training as gpu_training
from benchmarks.gpu.trace import STEP


def test_the_benchmark_runs_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chosen = [
        "--device",
        "cpu",
        "--tiny",
        "--unshaped",
        "--model",
        "resnet",
        "--workers",
        "2",
        "--reducers",
        "1",
    ]
    effort = ["--rounds", "2", "--warmup", "1", "--profiled", "1"]
    files = ["--out", str(tmp_path), "--trace", str(tmp_path / "traces")]
    monkeypatch.setattr(sys, "argv", ["gpu_training", *chosen, *effort, *files])
    gpu_training.main()
    printed = capsys.readouterr().out
    for part in ("ours, TCP", "DDP, Gloo", "no communication", "no GPU", "loopback"):
        assert part in printed
    written = json.loads((tmp_path / "gpu-training-resnet-n2-cpu-tiny-unshaped.json").read_text())
    assert [row["contender"] for row in written["rows"]] == ["ours", "gloo", "noop"]
    assert len(written["rows"][0]["turns"]) == 2
    assert written["settings"]["trace"] == str(tmp_path / "traces")
    assert written["problems"] == []
    assert written["apart"]["gloo"] < 1e-3
    assert len(set(written["weights"]["ours"])) == 1
    trace = json.loads(
        (tmp_path / "traces" / "gpu-training-resnet-n2-cpu-tiny-unshaped-ours.json").read_text()
    )
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count(STEP) == 2
    assert {"handed over", "pushing", "delivered"} <= set(names), "our collectives are in it"
    assert any("Backward" in str(name) for name in names), "beside the backward pass"

"""The GPU training, as far as it needs no GPU: models, traces, conclusions and output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fakes.nccl_texts import socket_log

from benchmarks.gpu import nccl_log
from benchmarks.gpu import training as gpu_training
from benchmarks.gpu.report import APART_MAX, COLUMNS, Found, notes, problems, rows_of
from benchmarks.gpu.trace import STEP, kernel_share
from benchmarks.gpu.training import parse, slug
from benchmarks.lab.traffic import Link, Traffic, link_of
from benchmarks.loads.models import RECIPES, TINY, gradient_bytes
from benchmarks.method.experiment import table
from benchmarks.method.paired import Measurement, Sample


def measurement(*seconds: float) -> Measurement:
    made = Measurement()
    for turn in seconds:
        made.add([Sample([turn], 0.1)] * 4, 0.1, Traffic())
    return made


def found(log: str = "") -> Found:
    return Found(
        measured={
            "ours": measurement(0.5, 0.6, 0.4),
            "nccl": measurement(0.75, 0.9, 0.6),
            "noop": measurement(0.2, 0.1, 0.3),
        },
        shares={"ours": (0.4, 0.0), "nccl": (0.25, 0.5), "noop": (None, None)},
        digests={"ours": ["abc"] * 4, "nccl": ["xyz"] * 4},
        apart={"nccl": 1e-6},
        nccl=nccl_log.read([log or socket_log(rank) for rank in range(4)]),
        link=Link(rate_mbit=1000),
    )


@pytest.mark.parametrize(("model", "parameters"), [("bert", 109_514_298), ("resnet", 25_557_032)])
def test_the_models_have_the_sizes_of_the_originals(model: str, parameters: int) -> None:
    # BertForMaskedLM of Hugging Face and resnet50 of torchvision.
    assert gradient_bytes(RECIPES[model]) == 4 * parameters


@pytest.mark.parametrize("model", TINY)
def test_every_parameter_has_a_gradient(model: str) -> None:
    recipe = TINY[model]
    built = recipe.build()
    assert list(built.buffers()) == [], "DDP would send them around"
    recipe.loss(built, recipe.batch(recipe.examples, torch.Generator().manual_seed(0))).backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in built.parameters())
    first, again = (recipe.batch(3, torch.Generator().manual_seed(1)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def trace(base_us: float, steps: list[tuple[float, float]], kernels: list[tuple[str, float, float]]) -> dict:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "args": {}}]
    for begin, end in steps:
        span = {"ph": "X", "name": STEP, "ts": begin - base_us, "dur": end - begin}
        events += [span | {"cat": "user_annotation"}, span | {"cat": "gpu_user_annotation"}]
    for name, begin, end in kernels:
        event = {"ph": "X", "cat": "kernel", "name": name, "ts": begin - base_us, "dur": end - begin}
        events += [event, event | {"cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": begin - base_us + 90}]
    return {"baseTimeNanoseconds": base_us * 1e3, "traceEvents": events}


def test_the_gpu_counts_as_busy_while_any_rank_runs_a_kernel() -> None:
    steps = [(1000.0, 1100.0), (1100.0, 1200.0), (1200.0, 1300.0)]
    first = trace(900.0, steps, [("gemm", 1000, 1100), ("gemm", 1110, 1130), ("ncclDevKernel", 1100, 1150)])
    second = trace(500.0, [], [("gemm", 1120, 1140), ("gemm", 1195, 1210), ("add", 1122, 1125)])
    # 30 + 5 of the second step, 10 of the third. The first does not count.
    assert kernel_share([first, second], nccl=False) == pytest.approx(0.225)
    assert kernel_share([first, second], nccl=True) == pytest.approx(0.25)
    assert kernel_share([first], nccl=False) == pytest.approx(0.1)


def test_without_kernels_there_is_no_gpu_share() -> None:
    assert kernel_share([trace(0.0, [(0.0, 1.0), (1.0, 2.0)], [])], nccl=False) is None


def test_weights_must_match_across_ranks_and_contenders() -> None:
    assert problems({"ours": ["abc", "abc"], "nccl": ["xyz", "xyz"]}, {"nccl": APART_MAX}) == []
    assert problems({"ours": ["abc", "xyz"]}, {"gloo": 3.0, "nccl": float("nan")}) == [
        "ours: the weights differ between ranks: rank 0 abc, rank 1 xyz",
        "our weights are 3 of their way from those of gloo, 0.05 is allowed",
        "our weights are nan of their way from those of nccl, 0.05 is allowed",
    ]


def test_exposed_is_the_extra_step_time_due_to_communication() -> None:
    made = found()
    assert made.exposed_s("ours") == pytest.approx(0.3)
    assert made.exposed_s("noop") is None
    del made.measured["noop"]
    assert made.exposed_s("ours") is None


def test_the_printed_and_written_results() -> None:
    text = "\n".join([*table(COLUMNS, rows_of(found())), *notes(found())])
    assert "(*)" not in text
    for part in ("1.50 (1.50-1.50)", "300.0", "40.0%", "50.0%", "no GPU", "NCCL 2.29.7", "DDP, NCCL ring"):
        assert part in text
    lost = found(socket_log(0))
    doubtful = "\n".join([*table(COLUMNS, rows_of(lost)), *notes(lost)])
    assert "DDP, NCCL ring (*)" in doubtful
    assert "(*) no ring over the links: the communicators that are complete" in doubtful
    json.dumps(rows_of(found()))


def test_default_contenders_depend_on_the_device() -> None:
    assert parse([]).contenders == ["ours", "gloo", "nccl", "noop"]
    assert parse(["--device", "cpu"]).contenders == ["ours", "gloo", "noop"]
    assert parse(["--contenders", "nccl,noop"]).contenders == ["nccl", "noop"]
    assert parse(["--workers", "8"]).reducers == 8
    assert slug(parse(["--rate", "10000"])) == "gpu-training-bert-n4-cuda-10000mbit"
    assert slug(parse(["--unshaped", "--tiny"])) == "gpu-training-bert-n4-cuda-tiny-unshaped"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--contenders", "ring"],
        ["--device", "cpu", "--contenders", "nccl"],
        ["--workers", "1"],
        ["--rounds", "0"],
        ["--profiled", "0"],
        ["--rate", "0"],
        ["--model", "vgg"],
    ],
)
def test_wrong_arguments_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(wrong)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_missing_gpu_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_training", "--out", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        gpu_training.main()
    assert ended.value.code == 2
    assert "gpu_training: NCCL needs a GPU" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_fast_links_have_larger_bursts() -> None:
    assert link_of(500) == Link(rate_mbit=500)
    assert link_of(10_000).burst_bytes == 1_250_000

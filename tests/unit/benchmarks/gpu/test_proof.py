"""The command for a day with a GPU: every part, run on the CPU with Gloo's ring and tiny tensors."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.processes.warm import warm

from benchmarks.gpu import proof
from benchmarks.method.parts import Parts

ROOT = Path(proof.__file__).parents[2]
OPTIONS = ("--device", "cpu", "--tiny")


#: Parts that run together, and the files they must leave. The last ones run as on a machine that cannot shape links.
#: The second to fourth take long.
GROUPS = {
    "inventory,tests,nccl-2": "inventory",
    "nccl-4,training": "trace-gpu-training-bert-n2-cpu-tiny-1000mbit-ours.json.gz",
    "pipeline,mps-tests,nccl-10g,nccl-8,alone": "nccl",
    "cores-links,cores-processes,cores-kernels": "shaped",
    "cores-reducer,cores-rank": "loopback",
}


def test_the_groups_cover_all_parts() -> None:
    names = [part.name for part in proof.parts(Path(), device="cpu", is_tiny=True)]
    assert sorted(",".join(GROUPS).split(",")) == sorted(names)


@pytest.mark.timeout(300)  # on a busy machine a part of five seconds has taken 75
@pytest.mark.parametrize(
    "names", [pytest.param(names, marks=[pytest.mark.full] * (0 < i < 4)) for i, names in enumerate(GROUPS)]
)
def test_every_part(names: str, tmp_path: Path) -> None:
    has_links = names != list(GROUPS)[-1]
    done = subprocess.run(
        [warm(), "-m", "benchmarks.gpu.proof", str(tmp_path), *OPTIONS, "--parts", names],
        cwd=ROOT,
        env=os.environ | ({} if has_links else {"PATH": "/nowhere"}),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "proof.txt").read_text()
    document = json.loads((tmp_path / "proof.json").read_text())
    parts = document["parts"]
    assert ",".join(parts) == names
    assert {part["exit_code"] for part in parts.values() if part["command"] is not None} == {0}, text
    kept = {path.name for path in tmp_path.iterdir()} | {
        name for part in parts.values() for name in part["results"]
    }
    if not has_links or "links" not in document["missing"]:
        assert GROUPS[names] in kept


def test_parts_that_remain_without_nccl() -> None:
    """NCCL may refuse two ranks on one GPU."""
    with_nccl = {part.name: part for part in proof.parts(Path(), device="cuda", is_tiny=False)}
    without = {part.name: part for part in proof.parts(Path(), device="cuda", is_tiny=False, has_nccl=False)}
    changed = {name for name, part in without.items() if part != with_nccl[name]}
    assert changed == {"training", "alone"}
    assert "--contenders ours,gloo,noop " in without["training"].command
    assert [name for name, part in without.items() if "nccl" in part.needs] == [
        "nccl-4",
        "nccl-10g",
        "nccl-8",
    ]


def test_missing_mps_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = Parts("proof", tmp_path)
    with proof.mps(run):
        assert run.missing["mps"] == "no nvidia-cuda-mps-control"


@pytest.mark.parametrize(("code", "missing"), [(0, None), (1, "no driver")])
def test_mps_has_its_own_pipes_and_is_stopped(
    code: int, missing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, log = tmp_path / proof.CONTROL, tmp_path / "log"
    control.write_text(
        f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY $@" >>{log}\necho no driver\nexit {code}\n'
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run = Parts("proof", tmp_path)
    with proof.mps(run):
        assert run.missing.get("mps") == missing
        folder = run.variables.get("CUDA_MPS_PIPE_DIRECTORY")
        assert (folder is None) == (code == 1)
    calls = [line.split() for line in log.read_text().splitlines()]
    assert [words[1:] for words in calls] == ([["-d"]] if code else [["-d"], []])

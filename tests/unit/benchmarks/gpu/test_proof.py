"""The command for a day with a GPU, with Gloo's ring and tiny tensors on the CPU: every part of it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import proof
from benchmarks.method.parts import Parts

ROOT = Path(proof.__file__).parents[2]


def test_every_part(tmp_path: Path) -> None:
    """In two halves, since a test has two minutes; the second one as on a machine that cannot shape links."""
    names = [part.name for part in proof.parts(tmp_path, device="cpu", is_tiny=True)]
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for number, half in enumerate(halves):
        folder = tmp_path / str(number)
        options = ["--device", "cpu", "--tiny", "--parts", ",".join(half)]
        path = "/nowhere" if number else os.environ["PATH"]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.proof", str(folder), *options],
            cwd=ROOT,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr
        parts = json.loads((folder / "proof.json").read_text())["parts"]
        assert list(parts) == half
        codes = {name: part["exit_code"] for name, part in parts.items() if part["command"] is not None}
        assert set(codes.values()) == {0}, (folder / "proof.txt").read_text()
    first = json.loads((tmp_path / "0" / "proof.json").read_text())["parts"]
    assert first["inventory"]["results"]["inventory"]["copies"]
    assert first["nccl-4"]["results"]["nccl"]
    traces = sorted((tmp_path / "0").glob("trace-*.json.gz"))
    assert traces
    assert json.loads(gzip.open(traces[0]).read())["traceEvents"]


def test_without_mps_its_parts_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = Parts("proof", tmp_path)
    with proof.mps(run):
        assert run.missing["mps"] == "no nvidia-cuda-mps-control"


@pytest.mark.parametrize(("code", "missing"), [(0, None), (1, "no driver")])
def test_mps_has_pipes_of_its_own_and_ends(
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

"""`python -m benchmarks.lab`: a user's script on shaped links, with and without reducers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lab import __main__ as lab
from benchmarks.lab.network import Network, NetworkUnavailable
from benchmarks.lab.ranks import RanksFailed
from benchmarks.lab.script import job, outcome, steps
from benchmarks.lab.script.outcome import WITH, WITHOUT, Turn
from benchmarks.lab.traffic import Link, Traffic
from benchmarks.plots.style import png

ROOT = Path(__file__).parents[4]
STEPS = 6
#: A megabyte of gradients per step.
SCRIPT = f"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range({STEPS}):
    optimizer.zero_grad()
    model(torch.ones(4, 512)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(2, 0, Link(rate_mbit=100)) as network:
            yield network
    except NetworkUnavailable as error:
        pytest.skip(str(error))


def command(*words: str, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.lab", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def turn(seconds: float, step_s: float | None, **more: float) -> Turn:
    traffic = Traffic(worker_tx_bytes=8_000_000, worker_rx_bytes=4_000_000, reducer_rx_bytes=6_000_000)
    intervals = [] if step_s is None else [[step_s, step_s, 9.0], [step_s, step_s]]
    return Turn(seconds=seconds, steps=intervals, traffic=traffic, busy=more.get("busy", 0.5))


# ---- rejected input ----


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "torchrun", "missing.py"], "there is no script missing.py: give its path from "),
        (["--", "no-such-program"], "there is no program 'no-such-program'"),
        (
            ["--", "torchrun", "--nnodes", "3", __file__],
            "--nnodes is 3, but the lab has 4 hosts with workers",
        ),
        (["--", "torchrun", "--standalone", __file__], "--standalone trains on one host"),
        (["--speed", "5", "--", "torchrun", __file__], "--speed"),
        (["--workers", "1", "--", "torchrun", __file__], "--workers: 1 is below 2"),
        (["--rate", "0", "--", "torchrun", __file__], "--rate: 0 is below 1"),
        (
            ["--rate", "1X", "--", "torchrun", __file__],
            "--rate: the rate is '1X'; it must be the rate of a link",
        ),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_usage_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found:
        lab.parse(words)
    assert found.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("text", "mbit"), [("200", 200.0), ("2.5", 2.5), ("1G", 1000), ("100M", 100)])
def test_rates_are_numbers_or_have_a_unit(text: str, mbit: float) -> None:
    assert lab.parse(["--rate", text, "--", "torchrun", __file__]).rate == mbit


def test_it_needs_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["lab", "--out", str(tmp_path), "--", sys.executable, __file__])
    with pytest.raises(SystemExit) as found:
        lab.main()
    assert found.value.code == 2
    assert capsys.readouterr().err == "lab: shaped links need root\n"


# ---- conclusions from the turns ----


def test_rows_compare_the_turns_of_a_round(tmp_path: Path) -> None:
    turns = {WITHOUT: [turn(40, 0.3), turn(60, 0.4)], WITH: [turn(20, 0.2)]}  # the last round was interrupted
    ring, ours = outcome.rows_of(turns, workers=4)
    assert ring["times_as_fast"] is None
    assert ring["step_s"].median == pytest.approx(0.35)
    assert ours["times_as_fast"].median == pytest.approx(1.5)
    assert ours["times_as_fast_command"].median == 2.0
    assert ours["worker_tx_bytes"] == 2_000_000
    assert ours["to_reducers"] == 0.75
    *_, theirs, mine, _, _, _ = outcome.lines([ring, ours])
    assert theirs.replace(" ", "") == "|Gloo|350||50.0||2|1|0|50%|"
    assert mine.replace(" ", "") == "|reducers|200|1.50(1.50-1.50)|20.0|2.00(2.00-2.00)|2|1|0|50%|"
    assert png(outcome.figure([ring, ours], "")).startswith(b"\x89PNG")
    assert outcome.rows_of({WITHOUT: [], WITH: []}, workers=4) == []


def test_doubts_are_reported() -> None:
    turns = {
        WITHOUT: [turn(40, None, busy=0.95)],
        WITH: [replace(turn(20, None), traffic=Traffic(worker_tx_bytes=1))],
    }
    text = "\n".join(outcome.lines(outcome.rows_of(turns, workers=4)))
    assert "no optimizer of torch.optim stepped often enough" in text
    assert "The cores of this machine were 95% busy" in text
    assert "Only 0% of what the workers sent went to reducers" in text
    assert "ms per step" not in text


def test_steps_are_recorded_without_changing_the_script(tmp_path: Path) -> None:
    steps.install(tmp_path / "hook")
    (tmp_path / "steps").mkdir()
    script = """
import torch

weight = torch.ones(3, requires_grad=True)
seldom, often = torch.optim.SGD([weight]), torch.optim.Adam([weight])
for number in range(5):
    weight.sum().backward()
    often.step()
    if number < 2:
        seldom.step()
"""
    path = os.pathsep.join([str(tmp_path / "hook"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, steps.FOLDER: str(tmp_path / "steps")}
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=True)
    (intervals,) = steps.intervals(tmp_path / "steps", warmup=2)
    assert len(intervals) == 2
    assert all(seconds > 0 for seconds in intervals)
    assert steps.intervals(tmp_path / "steps", warmup=5) == [[]]


def test_a_script_that_already_uses_reducers_is_refused(tmp_path: Path) -> None:
    steps.install(tmp_path / "hook")
    (tmp_path / "steps").mkdir()
    script = """
import torch
from worker_plugin import client

client._has_started = True
weight = torch.ones(3, requires_grad=True)
weight.sum().backward()
torch.optim.SGD([weight]).step()
"""
    path = os.pathsep.join([str(tmp_path / "hook"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, steps.FOLDER: str(tmp_path / "steps")}
    environment.pop("REDUCTION_AUTO", None)
    run = [sys.executable, "-c", script]
    refused = subprocess.run(run, env=environment, timeout=60, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "RuntimeError: this script uses reducers by itself" in refused.stderr
    subprocess.run(run, env=environment | {"REDUCTION_AUTO": "ddp"}, timeout=60, check=True)


# ---- on hosts ----


def test_processes_left_behind_by_a_command_are_killed(network: Network, tmp_path: Path) -> None:
    tasks = [job.Task(host, os.environ, tmp_path / host.address) for host in network.workers]
    job.run(["sh", "-c", "setsid sleep 1000 & exit 0"], tasks, 30.0)
    assert [host.pids() for host in network.workers] == [[], []]
    with pytest.raises(RanksFailed, match=r"`sleep 1000` is not done after 0\.2 s on 10\.77\.0\.1"):
        job.run(["sleep", "1000"], tasks, 0.2)
    assert [host.pids() for host in network.workers] == [[], []]


def test_a_failing_scripts_output_is_shown(network: Network, tmp_path: Path) -> None:
    network.close()
    script = tmp_path / "script.py"
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    raise SystemExit('no data here')\n")
    done = command("--workers", "2", "--out", str(tmp_path), "--", "python", str(script))
    assert done.returncode == 1, done.stderr
    last = done.stderr[done.stderr.index("lab: ") :]
    assert last.startswith(
        f"lab: Gloo: `python {script}` ended with exit code 1 on 10.77.0.2; the end of its"
    )
    assert last.endswith("no data here\n\n")


@pytest.mark.full
def test_a_ddp_script_is_compared(network: Network, tmp_path: Path) -> None:
    network.close()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    settings = ["--workers", "2", "--rate", "100", "--rounds", "1", "--out", str(tmp_path)]
    done = command(*settings, "--", "torchrun", "--nproc-per-node", "1", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ms per step (median of {STEPS - 3} steps)" in done.stdout
    assert f"figure: {tmp_path / 'lab.png'}" in done.stdout
    ring, ours = json.loads((tmp_path / "lab.json").read_text())["rows"]
    # Both send a megabyte per step, once, over links that carry it in 0.09 s.
    for row in (ring, ours):
        assert row["step_s"][1] > 0.08
        assert 6e6 < row["worker_tx_bytes"] < 12e6
    assert ring["to_reducers"] < 0.01
    assert ours["to_reducers"] > 0.5

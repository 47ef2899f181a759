"""Rows are shown as they arrive, with the time left, and none is lost when a run is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab.cluster import Shape
from benchmarks.lab.traffic import Link
from benchmarks.method.paired import Measurement
from benchmarks.method.progress import Progress, kept, weight
from benchmarks.method.row import Row
from benchmarks.shaped import __main__ as shaped

ROOT = Path(__file__).parents[4]
MIB = 1 << 20

#: A run of two benchmarks. The second is interrupted.
CONFTEST = """
from pathlib import Path
from types import SimpleNamespace

import benchmarks.conftest
from benchmarks.conftest import *

benchmarks.conftest.LATEST = Path(__file__).with_name("latest.json")


@pytest.fixture(params=[Shape(workers=count, reducers=1) for count in (2, 4)])
def cluster(request):
    return SimpleNamespace(shape=request.param)
"""
SUITE = """
import os
import signal

from benchmarks.method.paired import Measurement


def test_it(cluster, record):
    if cluster.shape.workers == 4:
        os.kill(os.getpid(), signal.SIGTERM)
    measured = {name: Measurement(turns=[0.1], iterations=[0.1]) for name in ("tcp", "ring")}
    record("DDP step", 1 << 20, 1, measured)
"""


def row(workers: int) -> Row:
    times = {"tcp": 0.1, "ring": 0.15}
    measured = {name: Measurement(turns=[time_s], iterations=[time_s]) for name, time_s in times.items()}
    shape = Shape(workers=workers, reducers=workers, link=Link(rate_mbit=500))
    return Row(shape, "all-reduce", MIB, 1, measured)


def test_the_time_left_follows_from_the_weights_of_finished_rows() -> None:
    said: list[str] = []
    times = iter([100.0, 110.0, 130.0, 400.0])
    progress = Progress([1.0, 2.0, 30.0], said.append, lambda: next(times))
    progress.done("a")
    progress.done("b", "c")
    progress.done()
    assert said == [
        "[1/3, about 5 min left] a",
        "[2/3, about 5 min left] b",
        "[2/3, about 5 min left] c",
    ]


def test_bytes_on_a_link_weigh_most() -> None:
    assert weight(Shape(workers=2, reducers=1), 64 * MIB) < weight(row_shape(500), 64 * MIB)
    assert weight(row_shape(500), 64 * MIB) < weight(row_shape(200), 64 * MIB)


def row_shape(rate_mbit: float) -> Shape:
    return Shape(workers=2, reducers=1, link=Link(rate_mbit=rate_mbit))


def test_sigterm_keeps_the_results_so_far() -> None:
    said: list[str] = []
    with pytest.raises(SystemExit) as found, kept("tool", lambda: said.append("kept")):
        os.kill(os.getpid(), signal.SIGTERM)
    assert found.value.code == 128 + signal.SIGTERM
    assert said == ["kept"]


def test_an_interrupted_tool_shows_and_writes_its_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows_of(arguments: Any, shape: Shape, size_bytes: int) -> Iterator[Row]:
        if shape.link == Link(rate_mbit=200):
            raise KeyboardInterrupt
        yield row(shape.workers)

    path = tmp_path / "rows.json"
    monkeypatch.setattr(shaped, "rows_of", rows_of)
    monkeypatch.setattr(sys, "argv", ["shaped", "--rate", "500,200", "--json", str(path)])
    with pytest.raises(SystemExit) as found:
        shaped.main()
    assert found.value.code == 130
    output = capsys.readouterr().out
    line = "all-reduce, 1 MiB, n=4 k=4, 500 Mbit/s, 1 ms: tcp 100 ms (1.50 x ring), Gloo 150 ms"
    first, *table = output.splitlines()
    assert first.startswith("[1/2, about ")
    assert first.endswith(f" left] {line}")
    assert any(cells.startswith("| all-reduce | 1 MiB |") for cells in table)
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_an_interrupted_suite_keeps_its_rows(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "test_suite.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "[1/2, about " in done.stdout
    assert "left] DDP step, 1 MiB, n=2 k=1, loopback: tcp 100 ms (1.00 x ring), Gloo 100 ms" in done.stdout
    assert len(json.loads((tmp_path / "latest.json").read_text())["rows"]) == 1
    assert "| DDP step | 1 MiB | 2 | 1 | loopback |" in done.stdout
    assert f"figure: {tmp_path / 'steps.png'}\n" in done.stdout
    assert (tmp_path / "steps.png").is_file()

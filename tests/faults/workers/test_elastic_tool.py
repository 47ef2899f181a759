"""The tool `benchmarks.elastic`, with a few kills: real workers' contributions and results, judged by the checker."""

from __future__ import annotations

import subprocess
import sys

import pytest
from history.checker import read
from history.elastic import violations


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("more", [[], ["--reducers-too"]], ids=["workers", "reducers too"])
def test_survivors_get_the_sums_of_those_that_took_part(tmp_path, child_environment, more):
    history = tmp_path / "history"
    command = [sys.executable, "-m", "benchmarks.elastic", "--kills", "3", "--history", f"{history}", *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=child_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    records = read(history)
    assert violations(records) == []
    assert sum(record["what"] == "killed" for record in records) >= 2
    assert len({record["id"] for record in records if record["what"] == "joined"}) >= 4

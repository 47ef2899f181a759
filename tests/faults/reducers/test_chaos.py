"""The tool `benchmarks.chaos`, for a few seconds: a real training run whose reducers are struck continually."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from history.checker import read, violations

from benchmarks.chaos.course import WARMUP_STEPS
from benchmarks.chaos.reducers import ChaosReducers, schedule
from benchmarks.lab.network import NetworkUnavailable, check_network
from benchmarks.method.history import SUMS

FULL = pytest.mark.full


@pytest.mark.timeout(300)  # ranks import torch and scikit-learn
@pytest.mark.parametrize(
    ("number", "reducers", "more"),
    [
        ("KILL", 2, []),
        pytest.param("KILL", 1, ["--colocated"], marks=FULL),
        pytest.param("KILL", 1, [], marks=FULL),
        pytest.param("TERM", 2, ["--transport", "grpc"], marks=FULL),
        pytest.param("STOP", 2, ["--stop-for", "7"], marks=FULL),
    ],
)
def test_struck_reducers_change_no_bit(tmp_path, child_environment, number, reducers, more):
    if "--colocated" in more:
        try:
            check_network()
        except NetworkUnavailable as error:
            pytest.skip(str(error))
    out, history = tmp_path / "chaos.json", tmp_path / "history"
    command = [sys.executable, "-m", "benchmarks.chaos", "--kills", "3", "--every", "0.5", "--signal", number]
    command += [
        "--workers",
        "2",
        "--reducers",
        f"{reducers}",
        "--out",
        f"{out}",
        "--history",
        f"{history}",
        *more,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=child_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    written = json.loads(out.read_text())
    assert len(written["strikes"]) == 3
    # Ranks restart the reducers on their own hosts, and these do not count.
    restarts = [strike for strike in written["strikes"] if number != "STOP" and not strike["is_colocated"]]
    assert written["restarts"] == len(restarts)
    assert written["failure"] == ""
    assert written["digest"][:16] in done.stdout
    records = read(history)
    assert violations(records) == []
    steps = WARMUP_STEPS + written["steps"]
    assert sum(record["what"] == "result" for record in records) == 2 * steps * len(SUMS)


@pytest.mark.parametrize("number", ["KILL", "TERM", "STOP"])
def test_a_struck_reducer_serves_again_at_its_address(number):
    reducers = ChaosReducers(2, number, restart_after_s=0.0, stop_for_s=0.1)
    try:
        reducers.start()
        reducers.strike(schedule(1, 3, 0.05, 2))
        while not reducers.is_over:
            reducers.check()
            time.sleep(0.01)
        assert len(reducers.struck) == 3
        assert reducers.restarts == (0 if number == "STOP" else 3)
        assert all(0 < strike.back_s - strike.at_s < 30 for strike in reducers.struck)
    finally:
        reducers.close()

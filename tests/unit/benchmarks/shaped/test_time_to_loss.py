"""The time at which a training reaches the target, time_to_loss.py's conclusions, and a short run of it."""

import json
import sys
from dataclasses import asdict

import pytest

from benchmarks.lab.network import NetworkUnavailable, check_network
from benchmarks.method.experiment import table
from benchmarks.numerics.convergence import Run
from benchmarks.numerics.convergence_load import Way
from benchmarks.plots import style
from benchmarks.shaped import time_to_loss
from benchmarks.shaped.time_to_loss import COLUMNS, WINDOW, row_of, slow, steps_to, target_of, time_to
from benchmarks.shaped.time_to_loss_figure import figure, of

STEPS = 100


def run(name, wire, seconds, reached=STEPS):
    """Return a run whose loss of 2 becomes 1 at a step."""
    return Run(
        Way(name, wire), [2.0] * reached + [1.0] * (STEPS + WINDOW - reached), [seconds] * (STEPS + WINDOW)
    )


REFERENCE = run("ours, fp32", "fp32", 1.0, 50)


def test_the_target_is_reached_when_the_mean_of_recent_steps_reaches_it():
    assert target_of(REFERENCE, STEPS) == pytest.approx(1.01)
    assert steps_to(REFERENCE, 1.01) == 50 + WINDOW
    assert steps_to(REFERENCE, 1.5) == 50 + WINDOW // 2
    assert time_to(REFERENCE, 1.01) == 50 + WINDOW
    assert steps_to(REFERENCE, 0.9) is None
    assert time_to(REFERENCE, 0.9) == float("inf")
    assert steps_to(Run(Way("new", None)), 1.0) is None


def test_methods_that_are_too_slow_are_named():
    runs = [
        REFERENCE,
        run("ours, int8", "int8", 0.5, 60),
        run("ours, topk:0.1", "topk:0.1", 0.7, 60),
        run("ours, topk", "topk", 0.1, STEPS + WINDOW),
        run("powersgd", None, 2.0),
    ]
    assert slow(runs, STEPS) == [
        "ours, topk:0.1 is 1.25 times as fast as fp32, 1.3 is wanted",
        "ours, topk is 0.00 times as fast as fp32, 1.3 is wanted",
    ]
    *_, fast, never = table(COLUMNS, [row_of(runs[number], REFERENCE, STEPS) for number in (1, 3)])
    cells = [cell.strip() for cell in fast.split("|")[1:-1]]
    assert cells == ["ours, int8", "1.0000", "+0.00%", "500", "80", "40.0", "1.75"]
    assert [cell.strip() for cell in never.split("|")[5:-1]] == ["never", "inf", "0.00"]
    assert len(figure(runs, 1.0).axes[0].get_lines()) == len(runs) + 1


def test_a_figure_from_a_saved_result_equals_one_from_its_runs():
    runs = [REFERENCE, run("local SGD, Gloo", None, 0.1)]
    document = {"settings": {"steps": STEPS}, "runs": [asdict(one) for one in runs]}
    drawn = of(json.loads(json.dumps(document)))
    assert style.png(drawn) == style.png(figure(runs, target_of(REFERENCE, STEPS)))


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_short_run(tmp_path, monkeypatch):
    try:
        check_network()
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr(style, "DPI", 20)
    monkeypatch.setattr(time_to_loss, "LEAST", 0.0)
    chosen = ["--steps", "20", "--most", "2", "--workers", "2", "--wires", "int8", "--baselines", "powersgd"]
    monkeypatch.setattr(sys, "argv", ["time_to_loss", "--model", "digits", *chosen, "--out", str(tmp_path)])
    time_to_loss.main()
    document = json.loads((tmp_path / "time-to-loss-digits.json").read_text())
    assert [one["way"][0] for one in document["runs"]] == ["ours, fp32", "ours, int8", "powersgd"]
    for one in document["runs"]:
        assert 20 <= len(one["losses"]) == len(one["seconds"]) <= 40
    assert (tmp_path / "time-to-loss-digits.png").read_bytes().startswith(b"\x89PNG")

"""The bytes sent by torch's methods, computed by hand; convergence.py's conclusions; and a short run of everything."""

import json
import sys

import pytest

from benchmarks.method.experiment import table
from benchmarks.numerics import convergence
from benchmarks.numerics.convergence import COLUMNS, Run, row_of, ways, worse
from benchmarks.numerics.convergence_load import LEARNERS, POWER_START, Way, torch_bytes

SHAPES = [(100, 50), (100,), (4, 3)]


def trained(name, wire, *last):
    losses = [3.0] * 18 + list(last)
    return Run(Way(name, wire), losses, nbytes=[100.0 * step for step in range(1, 21)])


def test_bytes_that_a_ring_sends_and_receives():
    numel = 5000 + 100 + 12
    assert torch_bytes("none", SHAPES, 0, 2) == 2 * 4 * numel
    assert torch_bytes("none", SHAPES, 0, 4) == 2 * 1.5 * 4 * numel
    assert torch_bytes("bf16_hook", SHAPES, 0, 2) == torch_bytes("fp16_hook", SHAPES, 0, 2) == 2 * 2 * numel


def test_powersgd_sends_factors_where_they_save_bytes():
    assert torch_bytes("powersgd", SHAPES, POWER_START - 1, 2) == torch_bytes("none", SHAPES, 0, 2)
    # 150 x 2 of the first; the others are not matrices, or too small.
    assert torch_bytes("powersgd", SHAPES, POWER_START, 2) == 2 * 4 * (300 + 100 + 12)


def test_fp32_is_always_included_and_first():
    assert [way.name for way in ways(["int8"], ["none"])] == ["ours, fp32", "ours, int8", "none"]


def test_the_last_tenth_of_training_is_compared():
    found = [
        trained("ours, fp32", "fp32", 1.0, 1.0),
        trained("ours, int8", "int8", 1.0, 1.018),
        trained("ours, topk", "topk", 1.0, 1.04),
        trained("ours, fp8", "fp8", 2.0, 2.0),
    ]
    [problem] = worse(found, 0.01)
    assert problem == "ours, topk ends +2.00% above fp32, the limit is 1.00%"
    assert worse([found[0], trained("ours, topk", "topk", float("nan"), 1.0)], 0.01)
    *_, shown = table(COLUMNS, [row_of(found[1], found[0], 400.0)])
    assert [cell.strip() for cell in shown.split("|")[2:-1]] == ["1.0090", "+0.90%", "0.1", "4.0"]


@pytest.mark.parametrize("name", LEARNERS)
def test_batches_are_determined_by_step_and_rank(name):
    learner = LEARNERS[name]()
    model = learner.build()
    first, again, of_another, later = (
        learner.loss(model, learner.batch_of(step, rank, 2))
        for step, rank in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert first == again
    assert first not in (of_another, later)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_short_run(tmp_path, monkeypatch):
    chosen = ["--steps", "12", "--wires", "int8", "--baselines", "none,bf16_hook,powersgd"]
    monkeypatch.setattr(sys, "argv", ["convergence", "--model", "digits", *chosen, "--out", str(tmp_path)])
    convergence.main()
    document = json.loads((tmp_path / "convergence-digits.json").read_text())
    bytes_of = {one["way"][0]: one["nbytes"][-1] for one in document["trained"]}
    # A new chunk size starts a new epoch, in which everything in flight is pushed again.
    assert bytes_of["ours, fp32"] >= bytes_of["none"] == 2 * bytes_of["bf16_hook"]

"""The ring against a sum by hand, our averages against torch's, and the rows of accuracy.py."""

import json
import sys

import numpy as np
import pytest
import torch
from reduction.model import ReduceOp

from benchmarks.method.experiment import table
from benchmarks.numerics import accuracy
from benchmarks.numerics.accuracy import COLUMNS, broken, inexact, rows, unlike
from benchmarks.numerics.accuracy_sums import (
    HOOKS,
    WIRES,
    Errors,
    Gradients,
    normal,
    ours,
    ring,
    torch_average,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # `reduction.codecs` sets this for itself


def test_the_ring_starts_each_chunk_on_the_previous_rank_and_descends():
    # 256 + 1 is 256 in bfloat16 (ties to even), 1 + 1 + 256 is 258, so the sum shows the order.
    rows = torch.tensor([[1.0] * 6, [1.0] * 6, [256.0] * 6], dtype=torch.bfloat16)
    # Chunk 0: ranks 2, 1, 0. Chunk 1: 0, 2, 1. Chunk 2: 1, 0, 2.
    assert ring(rows).tolist() == [256, 256, 256, 256, 258, 258]


@pytest.mark.parametrize("numel", [1, 3, 100, 1001])
def test_the_ring_adds_everything_once(numel):
    rows = torch.arange(5 * numel, dtype=torch.float64).reshape(5, numel)
    assert torch.equal(ring(rows), rows.sum(0))


def test_large_tensors_have_more_segments():
    rows = torch.ones(2, 600_000, dtype=torch.float64)  # 4.6 segments: 6, three to a chunk
    assert torch.equal(ring(rows), rows.sum(0))


def test_errors_are_relative_to_the_largest_true_value():
    errors = Errors.of(np.array([1.0, 2.0, -4.0], np.float32), np.array([1.0, 1.0, -5.0]))
    assert errors == (0.2, pytest.approx(2 / 15))
    assert errors.over(Errors(0.4, 2 / 15)) == (0.5, pytest.approx(1.0))


@pytest.mark.parametrize("wire", WIRES)
def test_ours_is_near_the_sum(wire):
    gradients = Gradients(normal(3, 1000).values, (300, 1, 699))
    summed = ours(gradients, wire, ReduceOp.SUM)
    largest = np.abs(summed.encoded_sum).max()
    assert np.abs(summed.result - summed.encoded_sum).max() <= largest / 16
    average = ours(gradients, wire, ReduceOp.AVG).result
    np.testing.assert_allclose(average, summed.result / 3, atol=largest / 16)


def test_bf16_is_the_rounded_fold():
    assert inexact("normal", normal(5, 1000)) == []


def test_a_different_ring_is_detected():
    averages = {"bf16": np.zeros(3, np.float32)}
    assert unlike("normal", 2, averages, averages) == []
    [problem] = unlike("normal", 2, averages, {"bf16": np.array([0, 1, 0], np.float32)})
    assert "1 elements of Gloo's bf16 average" in problem


def test_rows_compare_with_torch_where_they_can():
    found = []
    for count in (2, 4):
        gradients = normal(count, 1000)
        found += rows("normal", gradients, {width: torch_average(gradients, width) for width in HOOKS})
    assert [row["wire"] for row in found] == [*WIRES, *WIRES]
    assert found[1]["sent"] == found[1]["torch_sent"]  # two ranks: one rounding on each side
    bf16, int8 = ([cell.strip() for cell in line.split("|")[2:-1]] for line in table(COLUMNS, found)[3:7:3])
    assert bf16[3:5] == ["1.00", "1.00"]
    assert int8[3:5] == ["-", "-"]
    assert "-" not in int8[5:]


def row(worst, mean, *, workers=8, wire="bf16"):
    errors = {"sent": Errors(worst, mean), "torch_sent": Errors(1.0, 1.0)}
    return {"data": "made", "workers": workers, "wire": wire} | errors


def test_limits_apply_to_bf16_with_eight_workers():
    assert broken([row(0.3, 0.5), row(9, 9, workers=4), row(9, 9, wire="int8")]) == []
    worst, mean = broken([row(0.31, float("nan"))])
    assert "worst error of bf16 is 0.310" in worst
    assert "mean error of bf16 is nan" in mean


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_short_run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["accuracy", "--workers", "2,3", "--data", "normal", "--out", str(tmp_path)]
    )
    accuracy.main()
    document = json.loads((tmp_path / "accuracy.json").read_text())
    assert document["problems"] == []
    assert len(document["rows"]) == 2 * len(WIRES)

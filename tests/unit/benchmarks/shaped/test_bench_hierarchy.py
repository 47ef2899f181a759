"""hierarchy.py's conclusions from turns, the gradients that training.py accepts, and a short run of both."""

from __future__ import annotations

import argparse
import sys

import pytest
import torch

from benchmarks.lab.network import NetworkUnavailable, check_network
from benchmarks.lab.traffic import Traffic
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import is_right
from benchmarks.method.experiment import table
from benchmarks.method.paired import Measurement
from benchmarks.shaped import hierarchy


def arguments(monkeypatch: pytest.MonkeyPatch, *given: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["hierarchy", *given])
    return hierarchy.parse()


def measured(turns: list[float], node_bytes: int) -> Measurement:
    """Return turns of two nodes that each send and receive this many bytes."""
    traffic = Traffic(
        worker_tx_bytes=2 * len(turns) * node_bytes, worker_rx_bytes=2 * len(turns) * node_bytes
    )
    return Measurement(turns=turns, worker_cpu_s=3.0, traffic=traffic)


def test_the_table_of_a_training_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(monkeypatch, "--train", "--nodes", "2")
    assert (given.size, given.reducers) == (gradient_bytes(NARROW["transformer"]), 2)
    size = given.size
    taken = {
        "hierarchical": measured([1.0, 2.0, 4.0], size),
        "tcp": measured([2.0, 4.0, 8.0], 2 * size),
        "ring": measured([4.0, 4.0, 4.0], 3 * size // 2),
        "noop": measured([0.5, 0.25, 0.5], 0),
    }
    lines = table(hierarchy.columns_of(given), hierarchy.rows_of(given, taken))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[2][:5] == [
        "hierarchical",
        "2.00 (1.50-3.00)",
        "2.00 (1.50-3.00)",
        "2.00 (2.00-2.00)",
        "2.000",
    ]
    assert rows[4][:5] == ["Gloo DDP", "4.00 (4.00-4.00)", "1.00 (1.00-1.00)", "1.00 (0.75-1.50)", "3.000"]
    assert rows[5][:2] == ["no communication", "0.50 (0.38-0.50)"]
    assert rows[0][-1] == "worker CPU s/step"
    assert rows[2][-1] == "1.00"


def test_the_table_of_all_reduces(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(monkeypatch, "--size", "1MiB", "--reducers", "3")
    assert (given.size, given.reducers) == (1 << 20, 3)
    taken = {name: measured([1.0, 1.0], 1 << 20) for name in ("hierarchical", "tcp", "ring")}
    lines = table(hierarchy.columns_of(given), hierarchy.rows_of(given, taken))
    assert len(lines) == 5
    assert lines[-1].startswith("| Gloo ring")


def test_a_training_run_takes_no_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments(monkeypatch, "--train", "--size", "1MiB")
    assert "not allowed with argument" in capsys.readouterr().err


def test_nodes_add_up_their_own_ranks_first() -> None:
    parts = [torch.tensor([value, value]) for value in (1.0, 2.0**-24, 2.0**-24, 2.0**-24)]
    flat, of_two, whole = 1.0 / 4, (1.0 + 2.0**-23) / 4, (1.0 + 3 * 2.0**-24) / 4
    for node, mean in ((1, flat), (4, flat), (2, of_two)):
        assert is_right(torch.full((2,), mean), parts, node, exact=True)
        assert is_right(torch.full((2,), whole), parts, node, exact=False)
        assert not is_right(torch.tensor([mean, mean * 1.01]), parts, node, exact=False)
    assert not is_right(torch.full((2,), flat), parts, 2, exact=True)
    assert not is_right(torch.full((2,), of_two), parts, 1, exact=True)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", [["--train"], ["--size", "1MiB"]], ids=" ".join)
def test_a_short_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: list[str]
) -> None:
    try:
        check_network()
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr(
        sys, "argv", ["hierarchy", "--nodes", "2", "--rate", "1000", "--rounds", "1", "--warmup", "1", *what]
    )
    hierarchy.main()
    printed = capsys.readouterr().out
    assert "\n2 nodes x 2 ranks, 2 reducers, " in printed
    assert ("\na step without communication takes " in printed) == ("--train" in what)

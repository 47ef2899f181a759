"""ladder.py's rows from the epochs that rank 0 printed, and the losses it rejects."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.lab.hosts import Host
from benchmarks.lab.ranks import RanksFailed
from benchmarks.method.experiment import table
from benchmarks.plots.style import png
from benchmarks.shaped import ladder, ladder_figure

NODES = [Host(address=f"10.77.0.{number}", interface="eth0") for number in (1, 2)]


def epochs(**seconds: list[float]) -> dict[str, list[ladder.Epoch]]:
    """Return epochs of 12 images. Rungs that are not given took a second each."""
    given = {name.replace("_", ", "): values for name, values in seconds.items()}
    return {
        name: [ladder.Epoch(2.0, 12, value) for value in given.get(name, [1.0, 1.0, 1.0])]
        for name in ladder.CONTENDERS
    }


def test_ranks_are_placed_on_their_hosts() -> None:
    assert ladder.hosts_of("one", NODES, 2) == NODES[:1]
    assert ladder.hosts_of("dataparallel", NODES, 2) == NODES[:1]
    assert ladder.hosts_of("ddp", NODES, 2) == ladder.hosts_of("reducers", NODES, 2) == NODES
    assert ladder.hosts_of("hsdp", NODES, 2) == [NODES[0], NODES[0], NODES[1], NODES[1]]


def test_rows_compare_with_the_same_round() -> None:
    given = argparse.Namespace(nodes=2, local=2)
    measured = epochs(ddp=[3.0, 6.0, 9.0], reducers=[2.0, 2.0, 2.0], hsdp_Gloo=[4.0, 4.0, 4.0])
    rows = {row["rung"]: row for row in ladder.rows_of(given, measured)}
    assert list(rows) == ["one", "dataparallel", "ddp", "reducers", "hsdp, Gloo", "hsdp"]
    assert [row["ranks"] for row in rows.values()] == [1, 1, 2, 2, 4, 4]
    assert rows["reducers"]["times_as_fast_as_without"] == (2.25, 3.0, 3.75)
    assert rows["hsdp"]["times_as_fast_as_without"] == (4.0, 4.0, 4.0)
    assert rows["ddp"]["images_per_s"] == 2.0
    *_, ddp, ours = table(ladder.COLUMNS, [rows["ddp"], rows["reducers"]])
    cells = [cell.strip() for cell in ours.split("|")[1:-1]]
    assert cells == ["reducers", "2", "2.00 (2.00-2.00)", "6.0", "3.00 (2.25-3.75)", "2.0000"]
    assert ddp.split("|")[5].strip() == ""
    assert png(ladder_figure.epochs(list(rows.values()))).startswith(b"\x89PNG")


def test_reducers_must_not_change_the_loss() -> None:
    measured = epochs()
    ladder.check(measured)
    measured["hsdp"][1] = ladder.Epoch(2.1, 12, 1.0)
    with pytest.raises(RanksFailed, match=r"hsdp: the loss is 2\.1, and 2\.0 without reducers"):
        ladder.check(measured)

"""Figures from documents with made-up numbers. Whether they look good must be checked by eye."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from support.fakes import bench_document as made

from benchmarks.method.table import quartiles
from benchmarks.plots import __main__ as plots
from benchmarks.plots import style, suite

MIB = made.MIB


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def test_one_turn_has_quartiles_too() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)


def test_the_bandwidth_figure_shows_the_bounds() -> None:
    axes, *others = drawn(suite.by_workers(made.shaped_rows())).axes
    assert not others, "only one kind of links has several numbers of workers"
    lines = {line.get_label(): [float(y) for y in line.get_ydata()] for line in axes.get_lines()}
    assert {"ours, tcp", "ours, grpc", "Gloo ring"} <= set(lines)
    assert lines["bound of a ring, B n/(2(n-1))"] == pytest.approx([200, 200 * 4 / 6, 200 * 8 / 14])
    assert lines["bound of reducers, B"] == [200] * 3
    assert lines["iperf3, one TCP stream"][0] == pytest.approx(191)
    assert axes.get_title("left").startswith("200 Mbit/s links, 1 ms queues, 128 KiB bursts\n64 MiB")


def test_one_worker_has_no_ring_and_perhaps_no_goodput() -> None:
    network, names = made.link(500, goodput=False), ("tcp", "noop")
    rows = [made.row(workers=n, reducers=n, size_bytes=MIB, network=network, names=names) for n in (1, 2)]
    labels = drawn(suite.by_workers(rows)).axes[0].get_legend_handles_labels()[1]
    assert labels == ["ours, tcp", "no communication", "bound of reducers, B"]


def test_a_step_has_a_bar_for_each_contender() -> None:
    figure = drawn(suite.step_times([*made.loopback_rows(), *made.shaped_rows()]))
    assert [len(axes.patches) for axes in figure.axes] == [4, 4]
    assert all("(ms)" in axes.get_ylabel() for axes in figure.axes)


def test_all_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "DPI", 20)  # for speed
    source = tmp_path / "latest.json"
    source.write_text(json.dumps(made.latest(*made.loopback_rows(), *made.shaped_rows())))
    written = plots.write(source, tmp_path / "out")
    assert [path.name for path in written] == ["algbw-links-by-workers.png", "steps.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)

    source.write_text(json.dumps(made.latest(made.row(workers=2, reducers=1, size_bytes=MIB))))
    assert plots.write(source, tmp_path / "out") == []
    assert list((tmp_path / "out").iterdir()) == [], "no figure of an earlier run stays"


@pytest.mark.parametrize("content", ["no JSON", '{"format": 1, "rows": []}'])
def test_an_invalid_file_is_refused(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "latest.json"
    source.write_text(content)
    monkeypatch.setattr("sys.argv", ["plots", str(source)])
    with pytest.raises(SystemExit, match="plots: "):
        plots.main()
    assert list(tmp_path.iterdir()) == [source]

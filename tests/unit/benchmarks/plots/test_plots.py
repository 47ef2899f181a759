"""Figures from documents with made-up numbers. That they look well is for eyes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from support.fakes import bench_document as made

from benchmarks.method.records import FormatUnknown, Record, quartiles, records
from benchmarks.plots import __main__ as plots
from benchmarks.plots import bandwidth as figures_bandwidth
from benchmarks.plots import ratios, style

MIB = made.MIB


def rows(*plain: dict[str, Any]) -> list[Record]:
    return records(made.latest(*plain))


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def heights(figure: Figure) -> dict[str, list[float]]:
    """Return the y of each line of the first panel."""
    return {
        str(line.get_label()): [float(y) for y in line.get_ydata()] for line in figure.axes[0].get_lines()
    }


def labels(figure: Figure) -> set[str]:
    return {text for axes in figure.axes for text in axes.get_legend_handles_labels()[1]}


def test_records_keep_quartiles_and_place() -> None:
    (row,) = rows(made.row(workers=4, reducers=2, size_bytes=MIB, network=made.link(500)))
    assert (row.shape, row.place) == ("n=4, k=2", "500 Mbit/s links, 1 ms queues, 128 KiB bursts")
    assert row.goodput_mbit == pytest.approx(477.5)
    tcp = row.contenders["tcp"]
    assert tcp.turn_s.low < tcp.turn_s.median < tcp.turn_s.high
    assert tcp.algbw_gb_s.median == pytest.approx(MIB / tcp.turn_s.median / 1e9, rel=1e-3)
    assert tcp.ratio is not None
    assert row.contenders["ring"].ratio is None


def test_one_turn_has_quartiles_too() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("document", [{}, {"format": 1, "rows": []}])
def test_another_format_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(FormatUnknown, match="this version reads 2"):
        records(document)


def test_algbw_on_links_has_the_bounds() -> None:
    figure = drawn(figures_bandwidth.by_size_on_links(rows(*made.shaped_rows())))
    assert len(figure.axes) == 1  # only one kind of links has several sizes
    lines = heights(figure)
    assert lines["bound of reducers, B"][0] == 500
    assert lines["bound of a ring, B n/(2(n-1))"][0] == pytest.approx(500 * 4 / 6)
    assert lines["iperf3, one TCP stream"][0] == pytest.approx(477.5)
    assert {"ours, tcp", "ours, grpc", "Gloo ring"} <= set(lines)


def test_fewer_reducers_than_workers_lower_the_bound() -> None:
    sizes = [
        made.row(workers=4, reducers=2, size_bytes=size, network=made.link(500, goodput=False))
        for size in (MIB, 4 * MIB)
    ]
    figure = drawn(figures_bandwidth.by_size_on_links(rows(*sizes)))
    lines = heights(figure)
    assert lines["bound of reducers, B k/n"][0] == 250
    assert "iperf3, one TCP stream" not in lines


def test_algbw_on_loopback_has_no_bounds() -> None:
    figure = drawn(figures_bandwidth.by_size_on_loopback(rows(*made.loopback_rows())))
    assert len(figure.axes) == 2
    assert labels(figure) == {"ours, tcp", "ours, grpc", "Gloo ring"}


def test_the_bound_of_a_ring_falls_with_the_workers() -> None:
    figure = drawn(figures_bandwidth.by_workers(rows(*made.shaped_rows())))
    lines = heights(figure)
    assert lines["bound of a ring, B n/(2(n-1))"] == pytest.approx([200, 200 * 4 / 6, 200 * 8 / 14])
    assert lines["bound of reducers, B"] == [200] * 3


def test_one_worker_has_no_ring() -> None:
    alone = [
        made.row(workers=1, reducers=1, size_bytes=size, network=made.link(500), names=("tcp", "noop"))
        for size in (MIB, 4 * MIB)
    ]
    figure = drawn(figures_bandwidth.by_size_on_links(rows(*alone)))
    assert "bound of a ring, B n/(2(n-1))" not in labels(figure)


def test_the_result_leaves_the_ring_out() -> None:
    figure = drawn(ratios.gain(rows(*made.loopback_rows(), *made.shaped_rows())))
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"ours, tcp", "ours, grpc"}


def test_a_step_has_a_bar_for_each_contender() -> None:
    figure = drawn(ratios.step_times(rows(*made.loopback_rows(), *made.shaped_rows())))
    assert [len(axes.patches) for axes in figure.axes] == [4, 4]
    assert all("(ms)" in axes.get_ylabel() for axes in figure.axes)


def test_what_was_not_measured_is_left_out() -> None:
    one = rows(made.row(workers=2, reducers=1, size_bytes=MIB, names=("tcp",)))
    for draw in plots.FIGURES.values():
        assert draw([]) is None
        assert draw(one) is None


def test_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "DPI", 20)  # for speed
    source = tmp_path / "latest.json"
    source.write_text(json.dumps(made.latest(*made.loopback_rows(), *made.shaped_rows())))
    written = plots.write(source, tmp_path / "out")
    assert [path.stem for path in written] == list(plots.FIGURES)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)

    source.write_text(json.dumps(made.latest(made.row(workers=2, reducers=1, size_bytes=MIB))))
    written = plots.write(source, tmp_path / "out")
    assert [path.name for path in written] == ["result.png"]
    assert not (tmp_path / "out" / "steps.png").exists()  # no figure of an earlier run stays


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"format": 1, "rows": []}'])
def test_a_wrong_file_is_refused(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "latest.json"
    source.write_text(content)
    monkeypatch.setattr("sys.argv", ["plots", str(source)])
    with pytest.raises(SystemExit, match="plots: "):
        plots.main()
    assert list(tmp_path.iterdir()) == [source]

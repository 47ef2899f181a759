"""Figures and the page, from documents with made-up numbers. That they look well is for eyes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from support.fakes import bench_document as made

from benchmarks.gil import figure as gil_figure
from benchmarks.method.records import FormatUnknown, Record, quartiles, records
from benchmarks.plots import __main__ as plots
from benchmarks.plots import bandwidth as figures_bandwidth
from benchmarks.plots import ratios as figures_paired
from benchmarks.plots import style, summary
from benchmarks.plots.report_page import page
from benchmarks.soak import figure as soak_figure

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


def test_the_ratio_leaves_the_ring_out() -> None:
    figure = drawn(figures_paired.ratio_by_workers(rows(*made.loopback_rows())))
    assert labels(figure) == {"ours, tcp", "ours, grpc"}
    figure = drawn(figures_paired.ratio_by_workers(rows(*made.shaped_rows())))
    assert "perfect reducers by a perfect ring" in labels(figure)


def test_a_step_has_a_bar_for_each_contender() -> None:
    figure = drawn(figures_paired.step_times(rows(*made.loopback_rows(), *made.shaped_rows())))
    assert [len(axes.patches) for axes in figure.axes] == [4, 4]
    assert all("(ms)" in axes.get_ylabel() for axes in figure.axes)


def test_what_was_not_measured_is_left_out() -> None:
    one = rows(made.row(workers=2, reducers=1, size_bytes=MIB, names=("tcp",)))
    for plan in plots.FIGURES:
        assert plan.draw([]) is None
        assert plan.draw(one) is None
    assert gil_figure.gil(made.gil() | {"rows": []}) is None
    assert soak_figure.memory(made.soak() | {"courses": []}) is None


class Checker(HTMLParser):
    """Fails on tags that do not nest, and collects what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href") and value is not None]
        assert tag not in ("script", "link", "iframe", "object")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)


def read(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


def test_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "DPI", 20)  # for speed
    plain = made.latest(*made.loopback_rows(), *made.shaped_rows(), scaling=True)
    source = tmp_path / "latest.json"
    source.write_text(json.dumps(plain))
    (tmp_path / "gil.json").write_text(json.dumps(made.gil()))
    (tmp_path / "soak.json").write_text(json.dumps(made.soak()))
    (tmp_path / "convergence-digits.png").write_bytes(style.png(soak_figure.memory(made.soak())))
    written = plots.write(source, tmp_path / "out")
    assert [path.name for path in written] == [
        *(f"{plan.name}.png" for plan in plots.FIGURES),
        *("gil.png", "soak.png", "report.html"),
    ]
    for path in written[:-1]:
        assert path.read_bytes().startswith(b"\x89PNG")
    html = written[-1].read_text()
    checker = read(html)
    assert all(re.match(r"#s\d|data:image/png;base64,", source) for source in checker.sources)
    assert not re.search(r"url\(|@import", html)
    assert len([source for source in checker.sources if source.startswith("data:")]) == len(written)
    assert "convergence-digits: The loss" in html
    assert checker.headings[0] == "Result"
    assert checker.headings[-1] == "Environment"
    assert "A &amp; B &lt;processor&gt;" in html
    assert "pytest benchmarks/" in html

    source.write_text(json.dumps(made.latest(made.row(workers=2, reducers=1, size_bytes=MIB))))
    (tmp_path / "gil.json").unlink()
    written = plots.write(source, tmp_path / "out")
    assert [path.name for path in written] == [
        *("result.png", "ratio-by-workers.png"),
        *("soak.png", "report.html"),
    ]
    assert not (tmp_path / "out" / "steps.png").exists()  # no figure of an earlier run stays


def test_the_result_says_where_the_ring_is_faster() -> None:
    fast = made.row(workers=4, reducers=4, size_bytes=64 * MIB, network=made.link(500))
    slow = made.row(workers=2, reducers=2, size_bytes=64 * MIB, network=made.link(500))
    near = made.row(workers=4, reducers=2, size_bytes=64 * MIB)
    assert summary.sentence(rows(fast, slow, near)) == (
        "Over tcp, reducers were 0.95 to 1.43 times as fast as the ring on shaped links (slower in 1 of 2 "
        "comparisons), and 1.43 to 1.43 times as fast as the ring on loopback (slower in 0 of 1 comparisons)."
    )
    assert summary.sentence(rows(made.row(workers=2, reducers=1, size_bytes=MIB, names=("tcp",)))) == ""


def test_a_column_without_values_is_not_shown() -> None:
    plain = made.latest(*made.loopback_rows())
    html = page(plain, records(plain), [])
    assert "<th>of iperf3</th>" not in html
    assert "<th>p50 ms</th>" in html


def test_the_page_tells_what_grew_and_what_failed() -> None:
    plain = made.latest(*made.shaped_rows())
    html = page(plain, records(plain), [], [], None, (made.soak(), []))
    assert "grew: RSS by 20.0 MiB, descriptors by 1" in html
    assert "Loopback" not in read(html).headings
    html = page(plain, records(plain), [], [], None, (made.soak("failed: rank 1 died"), []))
    assert "failed: rank 1 died" in html


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"format": 1, "rows": []}'])
def test_a_wrong_file_is_refused(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "latest.json"
    source.write_text(content)
    monkeypatch.setattr("sys.argv", ["plots", str(source)])
    with pytest.raises(SystemExit, match="plots: "):
        plots.main()
    assert list(tmp_path.iterdir()) == [source]


def test_the_command_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "some.json"
    source.write_text(json.dumps(made.latest()))
    monkeypatch.setattr("sys.argv", ["plots", str(source)])
    plots.main()
    assert capsys.readouterr().out.split() == [str(tmp_path / "report.html")]

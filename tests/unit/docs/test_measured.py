"""The tables of docs/measured.md match the results, and a new result fits into them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.fakes import bench_document as made

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    for name in [name for name in sys.modules if name.startswith("measured")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import measured

    return measured


def test_the_page_matches_the_results(measured: ModuleType) -> None:
    page = measured.PAGE.read_text(encoding="utf-8")
    assert measured.filled(page) == page
    assert page.count("<!-- table: ") == page.count("<!-- end -->") == len(measured.TABLES)


def test_kept_results_do_not_identify_the_machine(measured: ModuleType) -> None:
    document = made.latest(*made.loopback_rows(), *made.shaped_rows())
    document["environment"] = document["environment"] | {
        "kernel": "6.1.2-someone",
        "python_file": "/somewhere/python",
        "command": "python -m benchmarks.shaped --rate 500 --json /somewhere/x.json",
    }
    kept = measured.kept(document, "shaped/links")
    assert kept["environment"]["kernel"] == "6.1.2"
    assert kept["environment"]["command"] == "python -m benchmarks.shaped --rate 500"
    assert "/somewhere" not in json.dumps(kept)
    assert {row["network"] == "loopback" for row in kept["rows"]} == {False}
    assert {row["network"] for row in measured.kept(document, "loopback/all-reduce")["rows"]} == {"loopback"}


def test_a_new_result_fills_the_tables(
    measured: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = made.latest(*made.loopback_rows(), *made.shaped_rows())
    for name in ("shaped/links", "loopback/all-reduce"):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps(measured.kept(document, name)))
    (tmp_path / "shaped/small-sums.json").write_text(json.dumps(document | {"rows": []}))
    (tmp_path / "loopback/eight-workers.json").write_text(json.dumps(document | {"rows": []}))
    monkeypatch.setattr(sys.modules["measured_results"], "RESULTS", tmp_path)
    links = "\n".join(measured.TABLES["links"]())
    assert "| 8, 200 Mbit/s " in links
    assert "queues of 1 ms, commit 0000000" in links
    assert "1.67 (1.50-1.83)" in links
    assert "100 MiB" not in links
    assert len(list(measured.TABLES["loopback"]())) > 8
    assert "256 KiB" in "\n".join(measured.TABLES["small-sums"]())
    assert "8, 200 Mbit/s" in "\n".join(measured.TABLES["training"]())


def test_a_row_names_the_queue_it_was_measured_with(
    measured: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made.link(200) | {"latency_ms": 5.0}
    del before["queue_bytes"]  # which was at least a burst then
    rows = [
        made.row(workers=4, reducers=4, size_bytes=64 * made.MIB, network=network) | more
        for network, more in (
            (before, {}),
            (made.link(1000), {"processes": 2}),
            (made.link(1000) | {"packet_segments": 2}, {"processes": 1}),
        )
    ]
    (tmp_path / "shaped").mkdir()
    (tmp_path / "shaped/queues.json").write_text(json.dumps(made.latest(*rows)))
    for name, settings in (("old", {"rate_mbit": 20}), ("new", {"rate_mbit": 20, "queue_ms": 9.7})):
        document = {"environment": made.ENVIRONMENT, "rows": [], "settings": settings}
        (tmp_path / f"shaped/{name}.json").write_text(json.dumps(document))
    monkeypatch.setattr(sys.modules["measured_results"], "RESULTS", tmp_path)
    *_, first, second, third, _, source = measured.TABLES["queues"]()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (first, second, third)]
    assert [row[:4] for row in cells] == [
        ["4, 200 Mbit/s", "5.24 ms", "", ""],
        ["4, 1000 Mbit/s", "1 ms", "2", ""],
        ["4, 1000 Mbit/s", "1 ms", "1", "2 segments"],
    ]
    assert cells[0][-4:] == ["1, 1, 1", "1, 1, 1", "1.5, 1.5, 1.5", "2.5, 2.5"]
    assert "queues of 1, 5.24 ms" in source
    provenance = sys.modules["measured_tables.parts"].provenance
    assert ["of 52.4 ms" in line for line in provenance("shaped/old")] == [False, True]
    assert ["of 9.7 ms" in line for line in provenance("shaped/new")] == [False, True]

"""The tables of docs/measured.md are what the results say, and a new result fits into them."""

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


def test_the_page_is_what_the_results_say(measured: ModuleType) -> None:
    page = measured.PAGE.read_text(encoding="utf-8")
    assert measured.filled(page) == page
    assert page.count("<!-- table: ") == page.count("<!-- end -->") == len(measured.TABLES)


def test_a_result_is_kept_without_names_of_the_machine(measured: ModuleType) -> None:
    document = made.latest(*made.loopback_rows(), *made.shaped_rows(), scaling=True)
    document["environment"] |= {
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
    assert "1.67 (1.50-1.83)" in links
    assert "100 MiB" not in links
    assert len(list(measured.TABLES["loopback"]())) > 8
    assert "256 KiB" in "\n".join(measured.TABLES["small-sums"]())
    assert "8, 200 Mbit/s" in "\n".join(measured.TABLES["training"]())

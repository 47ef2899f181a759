"""Parts of a long benchmark: one that fails, hangs or cannot run stops no other, and results are written after each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.method.parts import Part, Parts, chosen


def known(folder: Path) -> tuple[dict[str, dict[str, object]], str]:
    return json.loads((folder / "all.json").read_text())["parts"], (folder / "all.txt").read_text()


def test_results_are_written_after_each_part(tmp_path: Path) -> None:
    run = Parts("all", tmp_path / "new")
    assert run.run(Part("one", "json.tool --help", 30)).exit_code == 0
    parts, text = known(tmp_path / "new")
    assert list(parts) == ["one"]
    assert "usage: python -m json.tool" in text
    assert run.run(Part("failing", "no.such.module", 30)).text.startswith("exit code 1 after ")
    parts, text = known(tmp_path / "new")
    assert parts["failing"]["exit_code"] == 1
    assert "No module named" in text


def test_a_part_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    run = Parts("all", tmp_path)
    outcome = run.run(Part("slow", "http.server 0", 1))
    assert (outcome.exit_code, outcome.why) == (None, "not done within 1 s")


def test_all_parts_share_a_time_limit(tmp_path: Path) -> None:
    outcome = Parts("all", tmp_path, limit_s=4.0).run(Part("late", "json.tool --help", 30))
    assert outcome.text == "did not run: no time is left"


def test_an_alternative_command_runs_if_something_is_missing(tmp_path: Path) -> None:
    run = Parts("all", tmp_path)
    run.missing["links"] = "no tc"
    links = frozenset({"links"})
    assert run.run(Part("none", "json.tool --help", 30, links)).text == "did not run: links: no tc"
    outcome = run.run(Part("other", "no.such.module", 30, links, "json.tool --help"))
    assert (outcome.command, outcome.exit_code) == ("json.tool --help", 0)
    assert outcome.why == "links: no tc"


def test_a_parts_results_are_kept(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("{}")
    run = Parts("all", tmp_path)
    run.run(Part("good", f"json.tool {given} {{out}}/answer.json", 30))
    run.run(Part("bad", f"shutil_copy {given}", 30))
    parts, _ = known(tmp_path)
    assert parts["good"]["results"] == {"answer": {}}
    assert parts["bad"]["results"] == {}


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [Part("a", "x", 1), Part("b", "y", 1)]
    parser = argparse.ArgumentParser()
    assert chosen(parts, None, parser) == parts
    assert [part.name for part in chosen(parts, "b,a", parser)] == ["b", "a"]
    with pytest.raises(SystemExit):
        chosen(parts, "a,c", parser)
    assert "--parts: c not among a, b" in capsys.readouterr().err

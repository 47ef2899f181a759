"""What all tables have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from measured_results import load

from benchmarks.method.table import markdown, without_empty_columns


def contender(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a contender did; every quantity that is not there is None."""
    names = ("p50_s", "algbw_gb_s", "ratio", "goodput_fraction", "worker_cpu_s_per_gb")
    return dict.fromkeys(names) | row["contenders"].get(name, {})


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table without empty columns."""
    return markdown(*without_empty_columns(head, rows))


def provenance(*names: str) -> Iterator[str]:
    """Yield a line for each result: its command, commit and date."""
    yield ""
    for name in names:
        environment = load(name)["environment"]
        command, commit, date = (environment[key] for key in ("command", "commit", "date"))
        yield f"*[`{command}`](measured/{name}.json), commit {commit}, {date[:10]}.*  "


def rows_of(*names: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the settings of each result with each of its rows."""
    for result in map(load, names):
        for row in result["rows"]:
            yield result["settings"], row

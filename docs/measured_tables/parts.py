"""What all tables have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from measured_results import load

from benchmarks.lab.traffic import queue_ms
from benchmarks.method.table import markdown, without_empty_columns

#: All links of results whose settings name a rate and no queue: from before its length was recorded.
_LINKS_BEFORE = {"latency_ms": 20.0, "burst_bytes": 128 << 10}


def contender(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a contender did; every quantity that is not there is None."""
    names = ("p50_s", "algbw_gb_s", "ratio", "goodput_fraction", "worker_cpu_s_per_gb")
    names += ("reducer_cpu_s_per_gb", "turns", "wire")
    return dict.fromkeys(names) | row["contenders"].get(name, {})


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table without empty columns."""
    return markdown(*without_empty_columns(head, rows))


def provenance(*names: str) -> Iterator[str]:
    """Yield a line for each result: its command, the queues of its links, commit and date."""
    yield ""
    for name in names:
        result = load(name)
        environment = result["environment"]
        command, commit, date = (environment[key] for key in ("command", "commit", "date"))
        yield f"*[`{command}`](measured/{name}.json){_queues(result)}, commit {commit}, {date[:10]}.*  "


def queue(network: dict[str, Any]) -> str:
    """Return how long the queues of a row's links are."""
    return f"{queue_ms(network):.3g} ms"


def _queues(result: dict[str, Any]) -> str:
    """Return how long the queues of all links of a result are; nothing if it used none."""
    networks = [row["network"] for row in result.get("rows", ()) if isinstance(row.get("network"), dict)]
    lengths = {queue_ms(network) for network in networks}
    settings = result.get("settings") or {}
    if "rate_mbit" in settings:
        lengths.add(settings.get("queue_ms", queue_ms(settings | _LINKS_BEFORE)))
    return f", queues of {', '.join(f'{length:.3g}' for length in sorted(lengths))} ms" if lengths else ""


def rows_of(*names: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the settings of each result with each of its rows."""
    for result in map(load, names):
        for row in result["rows"]:
            yield result["settings"], row

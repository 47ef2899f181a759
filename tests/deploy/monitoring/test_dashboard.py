"""`deploy/grafana/dashboard.json`: Grafana's requirements. test_live.py runs its queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml
from deploy.monitoring.conftest import DEPLOY

GRAFANA = DEPLOY / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboard.json").read_text())
ROWS = [
    "Is it training?",
    "Throughput against the links' rate",
    "Who is waited for?",
    "Waits",
    "The reducers' CPU and memory",
    "Links",
    "Events",
]
WIDTH = 24


def found(value: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key at any depth."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from found(item, key)


def test_the_row_titles():
    assert [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"] == ROWS


def test_ids_are_unique_and_the_schema_version_is_set():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["uid"] == "reduction-server"


def test_no_data_source_is_hard_coded():
    sources = list(found(DASHBOARD, "datasource"))
    assert len(sources) > len(DASHBOARD["panels"])
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    kinds = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert kinds == {"datasource": "datasource", "training_job": "query"}


def test_panels_do_not_overlap_and_have_descriptions():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < WIDTH
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


def test_job_metrics_can_be_filtered_by_job():
    """Every query about metrics with the label uses the variable."""
    for expr in found(DASHBOARD["panels"], "expr"):
        of_jobs = (
            "_bytes_total",
            "chunk",
            "collectives",
            "straggler",
            "epochs",
            "link_retransmits",
            "link_rtt",
            "job_",
        )
        if (
            any(f"reducer_{name}" in expr for name in of_jobs)
            or "reducer_received" in expr
            or "reducer_sent" in expr
        ):
            assert 'training_job=~"$training_job"' in expr, expr


def test_provisioning_finds_the_file_and_prometheus():
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/reduction-server.yaml").read_text())[
        "providers"
    ]
    assert provider["options"] == {"path": "/var/lib/grafana/dashboards"}

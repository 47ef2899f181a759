"""A real Prometheus scrapes live reducers with a live job, and answers every query of the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from deploy.monitoring.conftest import DEPLOY
from support.network.certificates import Authority
from support.processes.ranks import Ranks

DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: Delay of rank 1 behind rank 0 in each collective, in seconds.
LATE_S = 0.1
#: Metrics without series until an event happens, and the event.
EVENTS = {"reducer_errors_total": "a stream was closed with an error"}


def train_until_told(rank, reducers, job):
    """Sum repeatedly, rank 1 later than rank 0; return for how long."""
    with rank.state(reducers, job, chunk_bytes=4096) as state:
        stop, begun = torch.zeros(1), time.monotonic()
        while not stop:
            if rank.number == 1:
                time.sleep(LATE_S)
            rank.round(state, 5_000)
            if rank.number == 0 and rank.has_news:
                stop += rank.hear()
            dist.broadcast(stop, 0)
        return time.monotonic() - begun


class Server:
    """Prometheus over HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    @property
    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def query(self, expr: str, training_job: str = ".*") -> list[dict[str, Any]]:
        """Return the series that answer a dashboard query."""
        for variable, value in (
            ("$__rate_interval", "15s"),
            ("$__range", "60s"),
            (
                "$training_job",
                re.escape(training_job).replace("\\", "\\\\") if training_job != ".*" else ".*",
            ),
        ):
            expr = expr.replace(variable, value)
        assert "$" not in expr, "a variable that the test does not know"
        query = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=20) as answer:
            return json.load(answer)["data"]["result"]


@contextmanager
def running(prometheus: str, folder: Path, port: int, *targets: int) -> Iterator[Server]:
    """Start Prometheus with the configuration of `deploy`, but a scrape interval of one second and these targets."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus/rules.yml")]
    [scrape] = config["scrape_configs"]
    scrape["static_configs"] = [{"targets": [f"127.0.0.1:{target}" for target in targets]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    arguments = [
        "--config.file",
        str(file),
        "--storage.tsdb.path",
        str(folder / "data"),
        "--log.level",
        "warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [prometheus, *arguments, "--web.listen-address", f"127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        yield Server(port)
    finally:
        process.terminate()
        process.wait(20)


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def needs_an_event(expr: str) -> bool:
    return any(name in expr for name in EVENTS)


def metrics_at(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def straggler_s(port: int, rank: int) -> list[float]:
    """Return the straggler seconds that each process counts."""
    lines = re.findall(r"^reducer_straggler_seconds_total(\{.*\}) (.*)$", metrics_at(port), re.MULTILINE)
    return [float(value) for labels, value in lines if f'rank="{rank}"' in labels]


@pytest.mark.timeout(300)
def test_every_query_of_the_dashboard_is_answered_while_a_job_runs(
    prometheus, promtool, serve, ranks, job, free_port, until, tmp_path, monkeypatch
):
    monkeypatch.setattr(Ranks, "plane", "tcp")
    port, secured_port = free_port(), free_port()
    reducer = serve("--processes", "2", "--link", "1G", "--metrics-port", str(port))
    tls = Authority(tmp_path).files("localhost")
    options = ("--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca)
    serve("--metrics-port", str(secured_port), *options)
    call = ranks.begin(2, train_until_told, [reducer.address], job)
    with running(prometheus, tmp_path, free_port(), port, secured_port) as server:
        until(lambda: server.is_ready, "Prometheus", 60)
        wanted = [expr for expr in queries() if not needs_an_event(expr)]
        unanswered = list(wanted)

        def all_are_answered() -> bool:
            unanswered[:] = [expr for expr in unanswered if not server.query(expr)]
            return not unanswered

        try:
            until(all_are_answered, "series for all queries", 60)
        except pytest.fail.Exception:
            pytest.fail(f"no series after a minute for {unanswered}")
        assert promtool("check", "metrics", text=metrics_at(port)) == ""
        told = metrics_at(port) + metrics_at(secured_port)
        rules = (DEPLOY / "prometheus/rules.yml").read_text()
        used = set(re.findall(r"(?<![:\w])(?:reducer|process)_\w+(?=\{|\[| |\))", rules))
        assert len(used) > 8
        assert {name for name in used if f"\n{name}" not in told} == set()
        assert [expr for expr in queries() if needs_an_event(expr) and server.query(expr)] == []
        for annotation in DASHBOARD["annotations"]["list"]:
            server.query(annotation["expr"])  # they need events too, but must be queries
        # The label is ours and not Prometheus' own, and it can select a job.
        [chosen] = server.query(
            'max by (training_job) (reducer_chunks_total{training_job=~"$training_job"})', job
        )
        assert chosen["metric"] == {"training_job": job}
        shares = server.query(
            'max by (rank) (rate(reducer_straggler_seconds_total{training_job=~"$training_job"}[15s]))'
        )
        share = {one["metric"]["rank"]: float(one["value"][1]) for one in shares}
        assert share["1"] > share.get("0", 0.0)
        # Prometheus extrapolates a little beyond its samples.
        assert share["1"] <= 1.2
        assert {
            one["metric"]["certificate"]
            for one in server.query("reducer_certificate_expiry_timestamp_seconds")
        } == {
            "own",
            "ca",
        }
        during = straggler_s(port, 1)
        call.tell(0, 1)
        seconds, _ = call.answers()
        after = straggler_s(port, 1)
        assert len(during) == len(after) == 2, "both processes have chunks of the job"
        assert all(0 < before <= then <= seconds + 1 for before, then in zip(during, after, strict=True))
        until(
            lambda: (
                [one["value"][1] for one in server.query('max(reducer_jobs_total{outcome="ended"})')] == ["1"]
            ),
            "the end of the job",
        )

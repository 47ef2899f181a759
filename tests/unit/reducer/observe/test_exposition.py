"""Prometheus metrics of one process, and of all processes together."""

import asyncio
import select
import threading
import time

import pytest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from reducer.core.totals import OTHER, JobLabel, JobTotals, Traffic
from reducer.engine import Engine, Owner
from reducer.observe import gathering, metrics
from reducer.observe.exposition import Exposition, merge, of_all
from reducer.observe.gathering import answer, ask
from reducer.observe.metrics import EngineCollector, Sources
from reducer.process.messages import metrics_line
from reducer.transports.outbox import Path


@pytest.fixture
def engine():
    return Engine(memory_limit_bytes=1 << 30)


def samples_of(text):
    """Return the values of all series of process 3, by name and other labels."""
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert {one.labels.pop("process") for one in samples} == {"3"}
    assert {one.name.partition("_")[0] for one in samples} <= {"reducer", "process", "python"}
    return {
        (one.name, *(f"{key}={value}" for key, value in sorted(one.labels.items()))): one.value
        for one in samples
    }


def exposed(engine, loop, **sources):
    collector = EngineCollector(Sources(engine=engine, **{"paths": list} | sources), loop)
    return samples_of(Exposition(collector, number=3).text())


def job_totals(engine, job, **values):
    totals = engine.jobs.totals.by_label[JobLabel(job, "")] = JobTotals(**values)
    return totals


def test_the_counters_of_a_job(engine, loop):
    totals = job_totals(
        engine, "j", collectives=4, epochs=2, straggler_s={7: 1.5}, traffic={"tcp": Traffic(10, 20)}
    )
    for seconds in (0.0015, 0.003, 100.0):
        totals.chunk_waits.add(seconds)
    samples, job = exposed(engine, loop), ("group=", "training_job=j")
    assert samples["reducer_received_bytes_total", "group=", "plane=tcp", "training_job=j"] == 10
    assert samples["reducer_sent_bytes_total", "group=", "plane=tcp", "training_job=j"] == 20
    assert samples["reducer_straggler_seconds_total", "group=", "rank=7", "training_job=j"] == 1.5
    assert samples["reducer_collectives_total", *job] == 4
    assert samples["reducer_epochs_total", *job] == 2
    assert samples["reducer_chunks_total", *job] == samples["reducer_chunk_wait_seconds_count", *job] == 3
    assert samples["reducer_chunk_wait_seconds_sum", *job] == pytest.approx(100.0045)
    buckets = [
        samples["reducer_chunk_wait_seconds_bucket", "group=", f"le={bound}", "training_job=j"]
        for bound in ("0.001", "0.002", "0.004", "65.536", "+Inf")
    ]
    assert buckets == [0, 1, 2, 2, 3]


def test_ended_and_live_connections_add_up_by_host(engine, loop):
    label = JobLabel("j", "")
    totals = job_totals(engine, "j")
    totals.add_retransmits("a", 5)
    strangers = Owner(JobLabel("forgotten", ""), "a", totals)
    paths = [
        Path(Owner(label, "a", totals), 0.25, 2),
        Path(Owner(label, "a", totals), 0.5, 1),
        Path(Owner(label, "b", totals), 0.125, 9),  # one more than may have a series
        Path(strangers, 0.125, 9),
    ]
    samples = exposed(engine, loop, paths=lambda: paths)
    of = {
        (job, host): ("group=", f"host={host}", f"training_job={job}")
        for job, host in [("j", "a"), ("j", OTHER)]
    }
    assert samples["reducer_link_retransmits_total", *of["j", "a"]] == 8
    assert samples["reducer_link_rtt_seconds", *of["j", "a"]] == 0.5
    assert samples["reducer_link_retransmits_total", *of["j", OTHER]] == 9


def test_certificate_and_link_metrics(engine, loop):
    samples = exposed(engine, loop, certificate_expiry=lambda: {"own": 12.0}, link_bytes_per_s=125e6)
    assert samples["reducer_certificate_expiry_timestamp_seconds", "certificate=own"] == 12.0
    assert samples["reducer_link_rate_bytes_per_second",] == 125e6
    assert not any(name.startswith("reducer_link_rate") for name, *_ in exposed(engine, loop))


def test_a_process_whose_loop_has_ended_exposes_only_build_info(engine):
    ended = asyncio.new_event_loop()
    ended.close()
    names = {name for name, *_ in exposed(engine, ended) if name.startswith("reducer_")}
    assert names == {"reducer_build_info"}


def test_a_loop_that_does_not_answer_is_an_error(engine, loop, monkeypatch):
    monkeypatch.setattr(metrics, "ANSWER_S", 0.05)
    may_go_on = threading.Event()
    loop.call_soon_threadsafe(may_go_on.wait)
    with pytest.raises(TimeoutError):
        exposed(engine, loop)
    may_go_on.set()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)


# ---- several processes ----

ONE = (
    '# HELP a_total A\n# TYPE a_total counter\na_total{process="0"} 1.0\n# HELP b B\n# TYPE b gauge\nb 1.0\n'
)
TWO = "# HELP b B\n# TYPE b gauge\nb 2.0\nb 3.0\n# HELP c C\n# TYPE c gauge\n# HELP a_total A\n# TYPE a_total counter\n"


def test_each_metric_is_in_one_place():
    assert merge([ONE, TWO]) == (
        '# HELP a_total A\n# TYPE a_total counter\na_total{process="0"} 1.0\n'
        "# HELP b B\n# TYPE b gauge\nb 1.0\nb 2.0\nb 3.0\n# HELP c C\n# TYPE c gauge\n"
    )
    assert merge([]) == ""


def test_a_label_that_looks_like_a_header_is_not_one():
    family = CounterMetricFamily("a", "A", labels=["job"])
    family.add_metric(["\n# HELP b B\n"], 1)

    class Collector:
        def collect(self):
            yield family

    text = Exposition(Collector(), 0).text()
    assert merge([text]) == text


def test_silent_processes_are_down():
    text = of_all([ONE, None, TWO])
    assert text.endswith(
        "# HELP reducer_process_up 1 if a process has answered with its metrics\n# TYPE reducer_process_up gauge\n"
        'reducer_process_up{process="0"} 1.0\nreducer_process_up{process="1"} 0.0\n'
        'reducer_process_up{process="2"} 1.0\n'
    )
    assert text.startswith(merge([ONE, TWO]))


@pytest.fixture
def lines():
    """Three lines, each with an ending for the first process and one for the second."""
    made = [metrics_line() for _ in range(3)]
    yield made
    for ends in made:
        for end in ends:
            end.close()


def test_all_processes_are_asked_and_long_answers_are_whole(lines, monkeypatch):
    monkeypatch.setattr(gathering, "ANSWER_S", 0.5)
    answer(lines[0][1], lambda: "a" * 1_000_000)
    answer(lines[2][1], lambda: "é")
    begun = time.monotonic()
    assert ask([mine for mine, _ in lines]) == ["a" * 1_000_000, None, "é"]
    assert time.monotonic() - begun >= 0.5, "the second one had its time"
    assert ask([lines[2][0]]) == ["é"]


def test_a_process_that_fails_to_answer_once_answers_the_next_time(lines, caplog):
    answers = iter([RuntimeError("broken"), "text"])

    def text():
        one = next(answers)
        if isinstance(one, Exception):
            raise one
        return one

    answer(lines[0][1], text)
    assert ask([lines[0][0]]) == [None]
    assert ask([lines[0][0]]) == ["text"]
    assert "cannot send metrics to the first process reason=RuntimeError('broken')" in caplog.text


def test_a_process_that_comes_back_answers_the_next_request(lines, monkeypatch):
    monkeypatch.setattr(gathering, "ANSWER_S", 0.001)
    mine, theirs = lines[0]
    for _ in range(100):  # more than the socket buffers
        assert ask([mine]) == [None]
        if not select.select([], [mine], [], 0)[1]:
            break
    monkeypatch.undo()
    answer(theirs, lambda: "back")
    while not select.select([], [mine], [], 1)[1]:
        pass
    assert ask([mine]) == ["back"]

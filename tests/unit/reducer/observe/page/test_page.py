"""Responses for the page's paths, without a browser."""

import asyncio
import json
import re
import threading
from http import HTTPStatus

import pytest
from reduction.errors import ConfigError
from support.scenes.looks import job, process, silent

from reducer.config import ReducerConfig
from reducer.engine import Engine
from reducer.observe.page import sampler as module
from reducer.observe.page.routes import routes
from reducer.observe.page.sampler import EVENTS_MAX, JOBS_MAX, SCHEMA, Sampler, look_at_all
from reducer.observe.status import StatusAccess

ADDRESS = "10.0.0.1:50051"


def status_of(sampler):
    return json.loads(routes(sampler)["/api/status"]().text)


def test_before_the_first_look_there_is_no_status():
    answer = routes(Sampler())["/api/status"]()
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(answer.text) == {"schema": SCHEMA, "error": "this reducer has just started"}


def test_the_status_has_jobs_hosts_events_and_the_timeline():
    sampler = Sampler()
    events = [(1, 90.0, "EPOCH", "job", "epoch 1 started with 3 ranks")]
    for up in (10.0, 12.0):
        sampler.take([process(job(minimum=int(up), last=[(1, 50, 1.0)]), uptime_seconds=up, events=events)])
    status = status_of(sampler)
    assert status["schema"] == 1
    [one] = status["jobs"]
    assert (one["title"], one["collectives_per_s"], one["plane"]) == ("job", 1.0, "tcp")
    assert one["waited_for"] == {
        "rank": 1, "host": "host-1", "share": 1.0, "wait_s": 0.02, "is_straggler": True
    }  # fmt: skip
    assert status["hosts"][0]["address"] == ADDRESS
    assert status["events"][0]["kind"] == "epoch"
    assert status["timeline"]["jobs"][0]["collectives_per_s"] == [None, 1.0]


def test_the_status_has_no_secrets():
    sampler = Sampler()
    sampler.take([process(job())])
    text = routes(sampler)["/api/status"]().text
    assert not re.search("nonce|incarnation|instance|token|key", text)


def test_the_status_is_bounded():
    sampler = Sampler()
    jobs = [job(f"job-{number}") for number in range(JOBS_MAX + 5)]
    events = [(number, 1.0, "ENDED", f"job-{number}", "ended") for number in range(1, 65)]
    sampler.take([process(*jobs, events=events)])
    status = status_of(sampler)
    assert (len(status["jobs"]), status["jobs_left_out"]) == (JOBS_MAX, 5)
    assert len(status["events"]) == EVENTS_MAX
    assert status["events"][-1]["job"] == "job-64"


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/api/status"])
def test_nothing_foreign_is_loaded_and_nothing_inline_runs(path):
    answer = routes(Sampler())[path]()
    headers = dict(answer.headers)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"unsafe|http|\*", policy)
    assert headers["X-Content-Type-Options"] == "nosniff"
    foreign = re.findall(r"(?:https?:)?//\w[^\s\"']*", answer.text)
    assert foreign in ([], ["http://www.w3.org/2000/svg"]), "the latter is the name of SVG"
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", answer.text.partition("use strict")[2]
    )
    assert not re.search(r"<style|<script>|\son\w+=|\sstyle=", answer.text)


@pytest.fixture
def engine(loop):
    """An engine whose loop runs on its own thread."""
    return Engine(memory_limit_bytes=1 << 30), loop


def test_siblings_belong_to_the_first_process_however_they_are_dialed(engine, monkeypatch):
    monkeypatch.setattr(module, "look", lambda addresses, *_: [silent(address) for address in addresses])
    found = look_at_all(*engine, "0.0.0.0:50051", ["localhost:41001"], StatusAccess())
    assert [each.address for each in found] == ["0.0.0.0:50051", "0.0.0.0:41001"]
    sampler = Sampler()
    sampler.take(found)
    [host] = status_of(sampler)["hosts"]
    assert (host["state"], host["reason"], host["processes"]) == ("1 of 2", "refused", 2)


def test_a_loop_that_does_not_answer_is_reported(engine, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    may_go_on = threading.Event()
    engine[1].call_soon_threadsafe(may_go_on.wait)
    [own] = look_at_all(*engine, ADDRESS, [], StatusAccess())
    may_go_on.set()
    assert (own.status, own.reason) == (None, "the event loop has not answered for 0.05 s")
    ended = asyncio.new_event_loop()
    ended.close()
    [own] = look_at_all(engine[0], ended, ADDRESS, [], StatusAccess())
    assert own.reason == "the event loop has ended"


def test_a_look_that_fails_is_logged_once_and_tried_again(monkeypatch, caplog):
    looked = threading.Event()
    errors = [ValueError("first"), ValueError("second")]

    def look():
        if errors:
            raise errors.pop(0)
        looked.set()
        threading.Event().wait()  # this thread is done

    monkeypatch.setattr(module, "SAMPLE_S", 0.001)
    Sampler().start(look)
    assert looked.wait(20)
    [record] = caplog.records
    assert (
        record.message == "cannot get the status of the processes for the page, which shows the previous one"
    )


def test_the_page_needs_the_metrics_port():
    with pytest.raises(
        ConfigError, match="--page: the page is on the metrics port, so set --metrics-port too"
    ):
        ReducerConfig(bind="127.0.0.1:0", page=True)
    assert ReducerConfig(bind="127.0.0.1:0", page=True, metrics_port=9102).own_host == "127.0.0.1"
    assert ReducerConfig(bind="0.0.0.0:0", insecure=True).own_host == "127.0.0.1"
    with_tls = ReducerConfig(bind="0.0.0.0:0", tls_cert="c", tls_key="k", tls_ca="a")
    assert with_tls.own_host == "localhost"

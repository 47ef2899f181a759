"""The HTTP port: liveness and readiness of a process, metrics, and pages for authorized clients."""

import asyncio
import socket
import threading
from concurrent.futures import Future
from http import HTTPStatus

import pytest

from reducer.observe import http
from reducer.observe.http import Health, HostNames, application
from reducer.transports.http_server import Answer, Request


def trouble(health, *, readiness=False):
    return asyncio.run(health.trouble(readiness=readiness))


def test_a_process_is_ready_while_it_serves(loop):
    health = Health(loop)
    assert trouble(health) is None
    assert trouble(health, readiness=True) == "starting, draining or stopping"
    health.is_serving = True
    assert trouble(health, readiness=True) is None


def test_a_loop_that_does_not_answer_is_not_alive(loop, monkeypatch):
    monkeypatch.setattr(http, "ANSWER_S", 0.05)
    health, may_go_on = Health(loop), threading.Event()
    loop.call_soon_threadsafe(may_go_on.wait)
    assert trouble(health) == "the event loop has not answered for 0.05 s"
    may_go_on.set()
    monkeypatch.setattr(http, "ANSWER_S", 10.0)
    assert trouble(health) is None


def test_a_loop_that_is_busy_for_a_while_is_alive(loop):
    may_go_on = threading.Event()
    loop.call_soon_threadsafe(may_go_on.wait)

    async def ask():
        asking = asyncio.create_task(Health(loop).trouble(readiness=False))
        await asyncio.sleep(0.05)
        assert not asking.done()
        may_go_on.set()
        return await asking

    assert asyncio.run(ask()) is None


def test_a_loop_that_has_ended_is_not_alive():
    loop = asyncio.new_event_loop()
    loop.close()
    assert trouble(Health(loop)) == "the event loop has ended"


def asked(path, *, metrics=lambda: "a 1.0\n", health=None, host="", **settings):
    """Return the response to a request."""
    return asyncio.run(application(health, metrics, **settings)(Request(path, host)))


def test_probes_return_the_codes_that_kubernetes_expects(loop):
    health = Health(loop)
    assert asked("/livez", health=health) == Answer("ok\n")
    late = Answer("starting, draining or stopping\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
    assert asked("/readyz", health=health) == late


def test_each_path_has_its_page_and_others_list_the_available_paths():
    pages = {"/b": lambda: Answer("<p>", "text/html", HTTPStatus.GONE)}
    assert asked("/b", pages=pages) == Answer("<p>", "text/html", HTTPStatus.GONE)
    text = "available: /livez, /readyz, /metrics, /b\n"
    assert asked("/c", pages=pages) == Answer(text, status=HTTPStatus.NOT_FOUND)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "10.0.0.5:9102",
        "10.0.0.5",
        "[::1]:9102",
        "[fe80::1]",
        "localhost:9102",
        "reducer-0:9102",
        "PROXY.example.com",
        "proxy.example.com.:80",
        socket.gethostname(),
    ],
)
def test_names_of_this_host_are_allowed(host):
    assert HostNames(["proxy.example.com"]).allow(host)


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example:9102",
        "proxy.example.com.attacker.example",
        "10.0.0.5.attacker.example",
        "localhost.attacker.example",
        "999.0.0.1",
        "[",
        "localhost@attacker.example",
    ],
)
def test_names_that_others_may_own_are_refused(host):
    assert not HostNames(["proxy.example.com"]).allow(host)
    assert HostNames(["*"]).allow("attacker.example:9102")


def test_the_dns_name_of_this_host_is_allowed(monkeypatch):
    name: Future[str] = Future()
    monkeypatch.setattr(http, "begin", lambda call: name)
    names = HostNames([])
    assert not names.allow("gpu7.corp.example:9102")
    name.set_result("Gpu7.corp.example")
    assert names.allow("gpu7.corp.example:9102")


def test_metrics_of_a_loop_that_does_not_answer():
    def late():
        raise TimeoutError

    text = "the event loop has not answered for 5 s\n"
    assert asked("/metrics", metrics=late) == Answer(text, status=HTTPStatus.SERVICE_UNAVAILABLE)


def test_metrics_use_the_prometheus_text_format():
    answer = asked("/metrics")
    assert (answer.text, answer.status) == ("a 1.0\n", HTTPStatus.OK)
    assert answer.content_type.startswith("text/plain; version=0.0.4")


def test_metrics_are_made_once_for_concurrent_requests():
    calls, has_begun, may_go_on = [], threading.Event(), threading.Event()

    def slow():
        calls.append("made")
        has_begun.set()
        may_go_on.wait()
        return str(len(calls))

    async def ask():
        respond = application(None, slow)
        asking = [asyncio.create_task(respond(Request("/metrics", ""))) for _ in range(40)]
        await asyncio.to_thread(has_begun.wait)
        asking[0].cancel()  # its connection has ended
        may_go_on.set()
        answers = await asyncio.gather(*asking[1:])
        return [answer.text for answer in answers], (await respond(Request("/metrics", ""))).text

    assert asyncio.run(ask()) == (["1"] * 39, "2")

"""Whether a reducer process lives and is ready, as its HTTP port says."""

import asyncio
import threading
from http import HTTPStatus

from reducer.observe import http
from reducer.observe.http import Answer, Health, _routes, application


def test_a_process_is_ready_while_it_serves(loop):
    health = Health(loop)
    assert health.trouble(readiness=False) is None
    assert health.trouble(readiness=True) == "starting, draining or stopping"
    health.is_serving = True
    assert health.trouble(readiness=True) is None


def test_a_loop_that_does_not_answer_is_not_alive(loop, monkeypatch):
    monkeypatch.setattr(http, "ANSWER_S", 0.05)
    health, may_go_on = Health(loop), threading.Event()
    loop.call_soon_threadsafe(may_go_on.wait)
    assert health.trouble(readiness=False) == "the event loop has not answered for 0.05 s"
    may_go_on.set()
    monkeypatch.setattr(http, "ANSWER_S", 10.0)
    assert health.trouble(readiness=False) is None


def test_a_loop_that_has_ended_is_not_alive():
    loop = asyncio.new_event_loop()
    loop.close()
    assert Health(loop).trouble(readiness=False) == "the event loop has ended"


def asked(routes, path):
    """Return the status line, the headers and the text of an application's answer."""
    begun = []
    body = b"".join(
        application(routes)({"PATH_INFO": path}, lambda status, headers: begun.append((status, headers)))
    )
    [(status, headers)] = begun
    return status, dict(headers), body.decode()


def test_each_path_has_its_page_and_others_are_answered_with_the_paths_that_there_are():
    routes = {"/a": lambda: Answer("é"), "/b": lambda: Answer("<p>", "text/html", HTTPStatus.GONE)}
    assert asked(routes, "/a") == (
        "200 OK",
        {"Content-Type": "text/plain; charset=utf-8", "Content-Length": "2"},
        "é",
    )
    assert asked(routes, "/b") == ("410 Gone", {"Content-Type": "text/html", "Content-Length": "3"}, "<p>")
    assert asked(routes, "/c")[::2] == ("404 Not Found", "there are /a, /b\n")


def test_metrics_of_a_loop_that_does_not_answer():
    def late():
        raise TimeoutError

    routes = _routes(late, Health(None))
    assert asked(routes, "/metrics")[::2] == (
        "503 Service Unavailable",
        "the event loop has not answered for 5 s\n",
    )


def test_metrics_are_in_the_text_format_of_prometheus():
    status, headers, text = asked(_routes(lambda: "a 1.0\n", Health(None)), "/metrics")
    assert (status, text) == ("200 OK", "a 1.0\n")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")

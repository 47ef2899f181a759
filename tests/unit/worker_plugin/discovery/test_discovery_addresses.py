"""The source of the reducers' addresses, and DNS names while a job runs."""

import asyncio
import json
import socket
import threading

import pytest
from reduction.discovery.platforms.automatic import Named

from worker_plugin.config import build
from worker_plugin.discovery import addresses
from worker_plugin.discovery.addresses import Finder, configured, look_up

SPEC = {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool2": ["b:2"]}})}


def answers(*hosts):
    """Return getaddrinfo's result for a name with these addresses."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 50051)) for host in hosts]


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        ({}, {}, None),
        ({}, {"CLUSTER_SPEC": ""}, None),
        ({}, SPEC, Named(("b:2",), "CLUSTER_SPEC")),
        ({"reducers": "a:1"}, SPEC, Named(("a:1",), "the argument")),
        ({"reducers": "a:1"}, SPEC | {"REDUCTION_REDUCERS": "c:3"}, Named(("a:1",), "the argument")),
        ({}, SPEC | {"REDUCTION_REDUCERS": "c:3, d:4"}, Named(("c:3", "d:4"), "REDUCTION_REDUCERS")),
        (
            {},
            {"REDUCTION_REDUCERS": "slurm:nodes=a[1-2,4],b:1,file:/x"},
            Named(("slurm:nodes=a[1-2,4],b:1", "file:/x"), "REDUCTION_REDUCERS"),
        ),
    ],
)
def test_the_order_of_sources(arguments, environ, named):
    assert configured(build(arguments, environ), environ) == named


def looked_up(monkeypatch, names, *script):
    """Look up names on a name server that gives these answers."""
    questions = iter(script)

    def getaddrinfo(name, port, type):
        answer = next(questions)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asyncio.run(look_up(names))


def test_looking_up_again_needs_an_answer_for_every_name(monkeypatch):
    names = ("dns:a:1", "dns:b:2?count=9")
    found = looked_up(monkeypatch, names, answers("10.0.0.2", "10.0.0.1"), answers("fd00::1"))
    assert found == ("10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:2")
    with pytest.raises(OSError, match="no such name"):
        looked_up(monkeypatch, names, answers("10.0.0.2"), socket.gaierror(-2, "no such name"))


# ---- repeated lookups ----


def test_files_are_read_again_and_names_looked_up(tmp_path, monkeypatch, caplog):
    path = tmp_path / "list"
    path.write_text("a:1\n")
    finder = Finder({"dns:n:2": ("10.0.0.1:2",), f"file:{path}": ("a:1",)})
    monkeypatch.setattr(addresses, "look_up", lambda _: asyncio.sleep(0, ("10.0.0.9:2",)))

    def find(**how):
        return asyncio.run(finder.find(**how))

    assert find(everything=True) == ("10.0.0.9:2", "a:1")
    path.write_text("a:1\nb:1\n")
    assert find(everything=False) == ("10.0.0.9:2", "a:1")
    assert find(everything=True) == ("10.0.0.9:2", "a:1", "b:1")
    assert find(everything=False) == ("10.0.0.9:2", "a:1", "b:1")
    path.write_text("nonsense\n")
    assert find(everything=True) == find(everything=True) == ("10.0.0.9:2", "a:1", "b:1")
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("cannot look up the reducers: ")
    assert "line 1: reducer 'nonsense' is not HOST:PORT" in warning
    path.write_text("b:1\n")
    assert find(everything=True) == ("10.0.0.9:2", "b:1")


def test_a_failed_lookup_returns_nothing(monkeypatch):
    async def fails(_):
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(addresses, "look_up", fails)
    finder = Finder({"dns:n:2": ("10.0.0.1:2",)})
    assert asyncio.run(finder.find(everything=True)) is None
    assert asyncio.run(finder.find(everything=False)) is None


def test_only_one_lookup_runs_at_a_time(monkeypatch):
    asked = []

    async def slow(names):
        asked.append(names)
        await asyncio.sleep(0)
        return ("10.0.0.1:2",)

    async def twice():
        return await asyncio.gather(finder.find(everything=True), finder.find(everything=False))

    monkeypatch.setattr(addresses, "look_up", slow)
    finder = Finder({"dns:n:2": ()})
    assert asyncio.run(twice()) == [("10.0.0.1:2",), None]
    assert asked == [["dns:n:2"]]


@pytest.mark.parametrize(
    ("where", "name", "error"),
    [
        (addresses, "cluster_of", ZeroDivisionError("a bug of theirs")),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_a_source_that_raises_or_gets_no_thread_is_logged(monkeypatch, caplog, where, name, error):
    def fail(_):
        raise error

    monkeypatch.setattr(where, name, fail)
    finder = Finder({"consul:web": ("a:1",)})
    assert asyncio.run(finder.find(everything=True)) == ("a:1",)
    assert str(error) in caplog.text
    assert where is threading.Thread or f"consul:web: {error!r}" in caplog.text

"""Who names the reducers; and DNS names while a job runs."""

import json
import socket
from types import SimpleNamespace

import pytest
from reduction.discovery.platform import Named

from worker_plugin.config import build
from worker_plugin.discovery import addresses
from worker_plugin.discovery.addresses import configured, dns_names_in, look_up

SPEC = {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool2": ["b:2"]}})}


def answers(*hosts):
    """Return what getaddrinfo says about a name with these addresses."""
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


def test_what_may_change_later_are_names():
    assert dns_names_in(("a:1", "dns:b:2", "c-{0..1}:3", "dns:d:4?count=2")) == ("dns:b:2", "dns:d:4?count=2")


def loop_of(*script):
    """Return an event loop whose name server gives these answers, for `look_up`."""
    questions = iter(script)

    async def getaddrinfo(name, port, type):
        answer = next(questions)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(getaddrinfo=getaddrinfo)


def looked_up(monkeypatch, names, *script):
    monkeypatch.setattr(addresses.asyncio, "get_running_loop", lambda: loop_of(*script))
    coroutine = look_up(names)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something else")


def test_looking_up_again_needs_an_answer_for_every_name(monkeypatch):
    names = ("dns:a:1", "dns:b:2?count=9")
    found = looked_up(monkeypatch, names, answers("10.0.0.2", "10.0.0.1"), answers("fd00::1"))
    assert found == ("10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:2")
    with pytest.raises(OSError, match="no such name"):
        looked_up(monkeypatch, names, answers("10.0.0.2"), socket.gaierror(-2, "no such name"))

"""Strangers at the metrics port of a real reducer: idle connections, exhausted descriptors, foreign host names."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket

import pytest
from support.processes.reducers import status_of

#: More connections than the reducer may have descriptors.
IDLE = 300
DESCRIPTORS = 150


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def ask(port, path="/livez", **headers):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHo"])
def test_idle_connections_block_neither_probes_nor_workers(serve, free_port, sent):
    port = free_port()
    reducer = serve("--metrics-port", str(port), before=few_descriptors)
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            sock.sendall(sent)
        assert ask(port) == (200, "ok\n")
        assert ask(port, "/readyz") == (200, "ok\n")
        assert ask(port, "/metrics")[0] == 200
        assert status_of(reducer.address)["jobs"] == []


def test_probes_are_answered_while_others_hold_all_descriptors(serve, free_port, until):
    port = free_port()
    reducer = serve("--metrics-port", str(port), before=few_descriptors)
    host, _, grpc_port = reducer.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(DESCRIPTORS):
            stack.enter_context(socket.create_connection((host, int(grpc_port)), 30))
        until(lambda: "File descriptor limit reached" in reducer.log.text, "gRPC's complaint", 30)
        for _ in range(5):
            assert ask(port) == (200, "ok\n")
    until(lambda: ask(port, "/metrics")[0] == 200, "metrics, when there are descriptors again", 30)


def test_another_sites_page_cannot_read_ours(serve, free_port, until):
    """A foreign name may resolve to our address after the browser has loaded its page (DNS rebinding)."""
    port = free_port()
    serve("--metrics-port", str(port), "--page", "--page-hosts", "proxy.example.com", "--processes", "2")
    until(lambda: ask(port, "/api/status")[0] == 200, "the first look", 30)
    for path in ("/", "/api/status"):
        assert ask(port, path, Host="proxy.example.com")[0] == 200
        status, text = ask(port, path, Host=f"attacker.example:{port}")
        assert (status, "--page-hosts NAME" in text) == (421, True)
    assert ask(port, "/livez", Host="attacker.example")[0] == 200

"""The port that shows others that this process is alive."""

import os
import signal
import socket
import subprocess
import sys
import time

from worker_plugin.process import life

SCRIPT = """
import os, time
from worker_plugin.process.life import life_port
port = life_port()
if os.fork():
    print(port, flush=True)
else:
    print(life_port(), flush=True)
time.sleep(60)
"""


def test_it_accepts_connections_and_closes_them():
    port = life.life_port()
    assert life.life_port() == port > 0
    for host in ("127.0.0.1", "::1"):
        for _ in range(200):  # more than a backlog
            with socket.create_connection((host, port), timeout=10) as connection:
                assert connection.recv(1) == b""


def test_it_is_closed_when_the_process_is_killed_even_if_a_forked_child_lives_on():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment, process_group=0
    )
    try:
        assert process.stdout is not None
        ports = {int(process.stdout.readline()) for _ in range(2)}
        assert len(ports) == 2
        for port in ports:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        process.kill()
        process.wait()
        open_ports = set()
        deadline = time.monotonic() + 10
        while len(open_ports) != 1 and time.monotonic() < deadline:
            open_ports = set()
            for port in ports:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=10).close()
                    open_ports.add(port)
                except ConnectionRefusedError:
                    pass
        assert len(open_ports) == 1, "the child's own"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_a_process_that_cannot_listen_has_no_port(monkeypatch):
    def fail(*_, **__):
        raise OSError("no descriptor is left")

    monkeypatch.setattr(life, "_port", None)
    monkeypatch.setattr(socket, "create_server", fail)
    assert life.life_port() == 0


def test_without_ipv6_it_listens_on_ipv4(monkeypatch):
    real = socket.create_server

    def without(address, **options):
        if options.get("family") == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return real(address)

    monkeypatch.setattr(socket, "create_server", without)
    with life._listen() as listener:
        assert listener.family == socket.AF_INET

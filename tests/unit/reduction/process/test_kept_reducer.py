"""A reducer of our own restarts at its address whenever it ends, until it is stopped."""

import os
import socket
import subprocess
import sys

import pytest
from reduction.errors import ReducerUnavailable
from reduction.process import kept_reducer
from reduction.process.kept_reducer import RESTART_MAX_S, RESTART_S, STEADY_S, KeptReducer

SERVES = "import sys; print('listening on host:5', flush=True); sys.stdin.read()"


class Started(list):
    """The options of all processes that were started, and the behaviour of the next one."""

    code, error, pipe = SERVES, None, subprocess.PIPE

    def __init__(self):
        self.processes = []

    def start(self, folder, options, token):
        if self.error is not None:
            raise self.error
        self.append((folder, *options, token))
        command = [sys.executable, "-S", "-c", self.code]
        self.processes.append(subprocess.Popen(command, stdin=self.pipe, stdout=self.pipe, text=True))
        return self.processes[-1]

    def end(self):
        self.processes[-1].kill()
        self.processes[-1].wait()


@pytest.fixture
def started(monkeypatch):
    started = Started()
    monkeypatch.setattr(kept_reducer, "start_reducer", started.start)
    return started


@pytest.fixture
def reducer(started):
    reducer = KeptReducer("/ours", "127.0.0.1", "a secret", ["--more"])
    reducer.wait_until_ready()
    yield reducer
    reducer.stop()


def test_it_starts_again_at_its_address_after_a_pause(started, reducer, caplog):
    assert reducer.look(10.0) == 0
    started.end()
    assert reducer.has_ended
    assert reducer.look(10.0) == RESTART_S
    assert reducer.look(10.0 + RESTART_S / 4) == RESTART_S * 3 / 4
    assert len(started) == 1
    assert reducer.look(10.0 + RESTART_S) == 0
    assert not reducer.has_ended
    first, second = started
    assert first == second
    assert first[0] == "/ours"
    assert first[1:4] == ("--bind", reducer.address, "--ports-are-held")
    assert first[-2:] == ("--more", "a secret")
    assert caplog.messages == [
        f"the reducer {reducer.address} on this host ended with -9; it will be restarted"
    ]


def test_pauses_grow_until_a_reducer_has_run_steadily(started, reducer, monkeypatch):
    monkeypatch.setattr(kept_reducer.time, "monotonic", lambda: 0.0)
    pauses = []
    for now_s in (*[1.0] * 8, STEADY_S):
        started.end()
        pauses.append(reducer.look(now_s))
        assert reducer.look(now_s + pauses[-1]) == 0
    assert pauses == [0.5, 1, 2, 4, 8, 16, RESTART_MAX_S, RESTART_MAX_S, RESTART_S]


def test_a_start_that_fails_is_tried_again(started, reducer, caplog):
    started.end()
    started.error = OSError(12, "Cannot allocate memory")
    pause_s = reducer.look(0.0)
    again_s = reducer.look(pause_s)
    assert again_s == 2 * pause_s
    assert "cannot be started: [Errno 12] Cannot allocate memory" in caplog.text
    started.error = None
    assert reducer.look(pause_s + again_s) == 0
    assert not reducer.has_ended


def test_its_port_is_its_own_until_it_is_stopped(started):
    reducer = KeptReducer("/ours", "127.0.0.1", "a secret")
    port = int(reducer.address.rpartition(":")[2])
    _, numbers = reducer.inherited()
    assert len(numbers) == 3, "two pipes and the port"
    with pytest.raises(OSError, match="Address already in use"):
        socket.create_server(("127.0.0.1", port))
    reducer.stop()
    assert reducer.inherited() == (set(), [])
    socket.create_server(("127.0.0.1", port)).close()


def test_a_failed_start_leaves_nothing_behind(started):
    started.code = "import sys; sys.exit(3)"
    reducer = KeptReducer("/ours", "::1", "a secret")
    assert reducer.address.startswith("[::1]:")
    with pytest.raises(ReducerUnavailable, match="it ended with exit code 3"):
        reducer.wait_until_ready()
    assert reducer.inherited() == (set(), [])


def test_fork_error_leaks_no_fd(started):
    started.error = OSError(12, "Cannot allocate memory")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        KeptReducer("/ours", "127.0.0.1", "a secret")
    assert os.listdir("/proc/self/fd") == before


def test_no_such_address():
    with pytest.raises(ReducerUnavailable, match=r"cannot listen on 192\.0\.2\.1:0: Cannot assign"):
        KeptReducer("/ours", "192.0.2.1", "a secret")


def test_a_reducer_without_pipes(started):
    """The stand-ins of other tests have no pipe."""
    started.code, started.pipe = "", None
    reducer = KeptReducer("/ours", "127.0.0.1", "a secret")
    assert len(reducer.inherited()[1]) == 1
    reducer.stop()

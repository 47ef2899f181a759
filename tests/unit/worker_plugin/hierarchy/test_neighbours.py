"""Notes between a node's processes, the end of a process, and rejection of notes from any other process."""

import os
import socket
import subprocess
import sys

import pytest
from reduction.errors import ConfigError

from worker_plugin.hierarchy.neighbours import Ended, Kind, Neighbours, Note

SENDER = """
import sys
from worker_plugin.hierarchy.neighbours import Kind, Neighbours
us = Neighbours()
us.meet({0: (int(sys.argv[1]), sys.argv[2])})
print("there", flush=True)
for line in sys.stdin:
    us.tell(Kind.FAILED, code=12, text=line.strip() * int(sys.argv[3]))
    us.tell(Kind.LEFT, number=1 << 40)
"""


@pytest.fixture
def neighbours():
    made = Neighbours()
    yield made
    made.close()


def start(neighbours, times=1):
    command = [sys.executable, "-c", SENDER, str(os.getpid()), neighbours.address, str(times)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)
    assert process.stdout.readline() == "there\n"
    return process


def test_notes_and_the_end_of_a_process_arrive(neighbours):
    with start(neighbours) as process:
        neighbours.meet({3: (process.pid, "00")})
        process.stdin.write("rank 1 is gone\n")
        process.stdin.close()
        news = []
        while not any(isinstance(one, Ended) for one in news):
            news += neighbours.listen(10.0)
    assert news == [
        Note(3, Kind.FAILED, code=12, text="rank 1 is gone"),
        Note(3, Kind.LEFT, 1 << 40),
        Ended(3),
    ]
    assert neighbours.listen(0) == []


def test_a_long_text_is_cut(neighbours):
    with start(neighbours, times=5000) as process:
        neighbours.meet({3: (process.pid, "00")})
        process.stdin.write("ü\n" * 2)
        process.stdin.close()
        note = neighbours.listen(10.0)[0]
        assert note.text == "ü" * 4000


def test_notes_of_strangers_are_not_read(neighbours):
    with start(neighbours) as process:
        process.stdin.write("listen to me\n")
        process.stdin.close()
        process.wait()
        assert neighbours.listen(10.0) == []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"x" * 100, bytes.fromhex(neighbours.address))
        assert neighbours.listen(10.0) == []


def test_a_wake_ends_the_wait(neighbours):
    neighbours.wake()
    assert neighbours.listen(60.0) == []


def test_notifying_a_dead_process_is_not_an_error(neighbours):
    process = start(neighbours)
    neighbours.meet({3: (process.pid, b"\0gone".hex())})
    neighbours.tell(Kind.LEFT)
    process.kill()
    process.communicate()


def test_a_process_that_has_ended_cannot_be_met(neighbours):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError):
        neighbours.meet({1: (process.pid, "00")})


def test_close_leaves_no_descriptor_open():
    before = set(os.listdir("/proc/self/fd"))
    us = Neighbours()
    us.meet({1: (os.getpid(), us.address)})
    assert len(us.descriptors) == 2
    us.close()
    assert us.descriptors == []
    us.wake()
    us.tell(Kind.LEFT)
    assert set(os.listdir("/proc/self/fd")) == before


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ConfigError, match="local_group needs Linux"):
        Neighbours()

"""Inherited state of a forked child: connections that it must not keep open, and descriptors that it must not close."""

import contextlib
import os
import socket
import tempfile

import pytest

from worker_plugin.process import fork


class Owner:
    """Has a connection, identified by its destination, and a pipe, identified by its descriptor."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = listener.getsockname()
            self.connection = socket.create_connection(self.address)
            self.peer, _ = listener.accept()
        reading, writing = os.pipe()
        self.reader, self.writer = open(reading, "rb"), open(writing, "wb")
        fork.register(self)

    def inherited(self):
        return {self.address}, [self.writer.fileno()]

    def close(self):
        self.connection.close()
        self.writer.close()


@pytest.fixture
def owner():
    one = Owner()
    yield one
    one.close()
    one.peer.close()
    one.reader.close()


@contextlib.contextmanager
def child(act):
    """Fork a child that acts, and exits when the block ends; an error in it fails the test."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(writing)
            act()
            os.read(reading, 1)  # until the parent closes its end
            code = 0
        finally:
            os._exit(code)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_connections_and_pipes_end_with_the_parent_even_if_a_child_lives_on(owner):
    owner.peer.settimeout(30)
    with child(lambda: None):
        owner.close()
        assert owner.peer.recv(1) == b""
        assert owner.reader.read() == b""


def test_a_child_that_closes_its_copies_does_not_end_the_parents(owner):
    with child(owner.close):
        owner.connection.sendall(b"still here")
        assert owner.peer.recv(100) == b"still here"
        owner.peer.sendall(b"and back")
        assert owner.connection.recv(100) == b"and back"
        owner.writer.write(b"so is this")
        owner.writer.flush()
        assert owner.reader.read(10) == b"so is this"


def test_files_a_child_opens_are_not_closed_when_its_copies_die(owner):
    """Each copy closes its descriptor when it dies, and that number must not have been reused."""

    def act():
        last = max(owner.connection.fileno(), owner.writer.fileno())
        files = [tempfile.TemporaryFile()]
        while files[-1].fileno() <= last:  # no number up to theirs is free any more
            files.append(tempfile.TemporaryFile())
        del owner.connection, owner.writer
        for file in files:
            file.write(b"mine")
            file.seek(0)
            assert file.read() == b"mine"

    with child(act):
        pass


def test_a_child_passes_no_copies_to_the_programs_that_it_runs(owner):
    def act():
        for number in (owner.connection.fileno(), owner.writer.fileno()):
            assert not os.get_inheritable(number)
            assert os.path.samestat(os.fstat(number), os.stat(os.devnull))

    with child(act):
        pass


def test_a_child_keeps_its_other_connections(owner):
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = stack.enter_context(socket.create_connection(listener.getsockname()))
        theirs = stack.enter_context(listener.accept()[0])
        with child(lambda: ours.sendall(b"hello")):
            assert theirs.recv(5) == b"hello"

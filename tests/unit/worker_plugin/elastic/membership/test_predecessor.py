"""The record that a process leaves for its replacement, and its secrecy from any other process."""

import os
import signal
import subprocess
import sys

import pytest

from worker_plugin.elastic.membership import predecessor as module
from worker_plugin.elastic.membership.lineage import Worker
from worker_plugin.elastic.membership.predecessor import HostRecord

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/shm")
FIRST, SECOND, THIRD = (Worker(3, letter * 32) for letter in "abc")
#: A worker that joins generations 1 and 4, forks, and is killed by the test once its child reports that it runs.
SCRIPT = """
import os, sys, time
from pathlib import Path
from worker_plugin.elastic.membership import predecessor
from worker_plugin.elastic.membership.lineage import Worker
predecessor.FOLDER = Path(sys.argv[1])
mine = predecessor.HostRecord("job", Worker(3, "a" * 32))
assert mine.former() is None
mine.keep(1)
mine.keep(4)
if not os.fork():
    print(os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def path(folder):
    """Return the path of the record of a process with this rank."""
    joined(FIRST, 1).release()
    (path,) = folder.iterdir()
    path.unlink()
    return path


def joined(own: Worker, *numbers: int) -> HostRecord:
    record = HostRecord("job", own)
    assert record.former() is None
    for number in numbers:
        record.keep(number)
    return record


def test_the_next_process_learns_what_the_one_before_it_has_joined(folder):
    joined(FIRST, 1, 12, 13).release()
    second = HostRecord("job", SECOND)
    assert second.former() == (FIRST.nonce, 13)
    assert second.former() is None
    second.release()
    third = HostRecord("job", THIRD)  # the second one has joined nothing
    assert third.former() == (FIRST.nonce, 13)
    third.keep(15)
    third.release()
    assert HostRecord("job", FIRST).former() == (THIRD.nonce, 15)


def test_nothing_is_known_of_a_process_that_may_be_alive():
    first = joined(FIRST, 1)
    second = HostRecord("job", SECOND)
    assert second.former() is None
    second.keep(2)  # it has no file
    first.release()
    assert second.former() == (FIRST.nonce, 1)


def test_children_of_a_killed_process_do_not_keep_its_lock(folder):
    """Its orphans live on, and must not keep the lock."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    second = HostRecord("job", SECOND)
    assert second.former() is None
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        assert second.former() == (FIRST.nonce, 4)
    finally:
        os.kill(child, signal.SIGKILL)


def test_other_jobs_ranks_and_hosts_know_nothing(folder, tmp_path_factory, monkeypatch):
    joined(FIRST, 1).release()
    assert HostRecord("other", SECOND).former() is None
    assert HostRecord("job", Worker(2, SECOND.nonce)).former() is None
    monkeypatch.setattr(module, "FOLDER", tmp_path_factory.mktemp("host"))
    assert HostRecord("job", SECOND).former() is None


def test_a_process_that_leaves_cleanly_leaves_nothing_behind(folder):
    first = joined(FIRST, 1)
    first.erase()
    assert not list(folder.iterdir())
    first.release()
    assert HostRecord("job", SECOND).former() is None


def test_after_a_failed_write_the_previous_number_is_not_used(folder, monkeypatch):
    first = joined(FIRST, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    first.keep(2)
    assert HostRecord("job", SECOND).former() is None


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_foreign_objects_in_its_place_are_tolerated(make, path):
    make(path)
    joined(FIRST, 1).erase()
    joined(FIRST, 1).release()


@pytest.mark.parametrize("record", [b"\xff", b"one", b"a b", b"a 1 2"])
def test_an_invalid_record_is_replaced(record, path):
    path.write_bytes(record)
    joined(FIRST, 1).release()
    assert HostRecord("job", SECOND).former() == (FIRST.nonce, 1)


def test_a_missing_folder_is_tolerated(monkeypatch, folder):
    monkeypatch.setattr(module, "FOLDER", folder / "none")
    joined(FIRST, 1).release()

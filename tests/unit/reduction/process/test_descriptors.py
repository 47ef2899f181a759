"""The number of open descriptors and its limit. The limits are fake, so this process's own do not change."""

import errno
import os
import resource

import pytest
from reduction.process import descriptors

INFINITY = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    """Return the process's limits, as a list that `setrlimit` changes."""
    both = [1024, 4096]

    def change(what, wanted):
        assert what == resource.RLIMIT_NOFILE
        assert wanted[1] == both[1]
        both[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(both))
    monkeypatch.setattr(resource, "setrlimit", change)
    return both


@pytest.mark.parametrize(
    ("soft", "hard", "count", "allowed", "after"),
    [
        (1024, 4096, 1000, 1000, 1024),
        (1024, 4096, 1024, 1024, 1024),
        (1024, 4096, 1025, 1025, 1025),
        (1024, 4096, 5000, 4096, 4096),
        (4096, 4096, 5000, 4096, 4096),
        (1024, INFINITY, 5000, 5000, 5000),
        (INFINITY, INFINITY, 5000, 5000, INFINITY),
    ],
)
def test_the_soft_limit_rises_as_far_as_needed_and_allowed(limits, soft, hard, count, allowed, after):
    limits[:] = soft, hard
    assert descriptors.allow(count) == allowed
    assert limits == [after, hard]


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_a_limit_the_system_refuses_stays_unchanged(limits, monkeypatch, error):
    def refuse(what, wanted):
        raise error

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert descriptors.allow(2000) == 1024


def test_those_in_use_are_counted():
    before = descriptors.in_use()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    try:
        assert descriptors.in_use() == before + 7
    finally:
        for number in opened:
            os.close(number)


@pytest.mark.parametrize(("number", "count"), [(errno.ENOENT, 0), (errno.EMFILE, 1024)])
def test_descriptors_that_cannot_be_counted(limits, monkeypatch, number, count):
    def fail(path):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "listdir", fail)
    assert descriptors.in_use() == count

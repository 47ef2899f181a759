"""All threads of a communicator get the first error that ended it."""

import traceback

import pytest
from reduction.errors import ClosedError, WorkerLost

from worker_plugin.ending import Ending


def test_it_has_begun_and_not_ended():
    ending = Ending()
    ending.begin()
    ending.wait()
    ending.check()
    assert ending.final is ending.error is None


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_first_error_counts(has_begun):
    ending = Ending()
    if has_begun:
        ending.begin()
    first = WorkerLost("first")
    assert ending.end(first)
    assert not ending.end(ClosedError("second"))
    for ask in (ending.wait, ending.check):
        with pytest.raises(WorkerLost) as raised:
            ask()
        assert raised.value is first is ending.error


def test_a_close_is_not_a_failure():
    ending = Ending()
    assert ending.end(ClosedError("closed"))
    assert not ending.end(WorkerLost("too late"))
    assert ending.error is None
    with pytest.raises(ClosedError, match="closed"):
        ending.check()


def test_an_error_that_comes_back_loses_the_frames_it_passed_through():
    ending = Ending()
    ending.end(WorkerLost("lost"))
    with pytest.raises(WorkerLost) as raised:
        ending.check()
    assert not ending.end(raised.value)
    assert raised.value.__traceback__ is None


def test_a_repeatedly_raised_error_does_not_grow_its_traceback():
    ending = Ending()
    ending.end(WorkerLost("lost"))
    lengths = []
    for _ in range(3):
        with pytest.raises(WorkerLost) as raised:
            ending.check()
        lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert lengths == lengths[:1] * 3

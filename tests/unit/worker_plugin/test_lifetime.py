"""A state's communicator: made once, ended once, and the first error stays."""

import gc
import threading
from unittest.mock import Mock

import pytest
from reduction.errors import ClosedError, WorkerFailed, WorkerLost

from worker_plugin.lifetime import Lifetime

OTHER = WorkerLost("rank 1 has gone")
OWN = WorkerFailed("out of luck")


def communicator(error=None):
    return Mock(spec=["leave", "close", "begin_close", "abandon", "error"], error=error)


def opened(error=None):
    lifetime, made = Lifetime(), communicator(error)
    assert lifetime.open(lambda: made) is lifetime.open(None) is made
    return lifetime, made


def refused(lifetime):
    with pytest.raises(Exception, match=r".") as caught:
        lifetime.open(communicator)
    return caught.value


def test_str_shows_the_state():
    assert str(Lifetime()) == "not connected"
    assert str(opened()[0]) == "open"
    assert str(opened(OTHER)[0]) == "failed (WorkerLost)"
    for end in (Lifetime.close, Lifetime.abort):
        lifetime, _ = opened()
        end(lifetime)
        assert (str(lifetime), lifetime.error) == ("closed", None)
        assert isinstance(refused(lifetime), ClosedError)


def test_a_failure_is_reported_to_all_and_persists():
    lifetime, made = opened()
    lifetime.fail(OWN, None)
    made.abandon.assert_called_once_with(OWN)
    lifetime.fail(OTHER, None)
    assert lifetime.error is OWN
    assert type(refused(lifetime)) is WorkerFailed


def test_an_earlier_failure_of_the_communicator_is_kept():
    lifetime, made = opened(OTHER)
    lifetime.fail(OWN, None)
    made.abandon.assert_not_called()
    assert lifetime.error is OTHER


def test_a_failure_before_there_is_a_communicator_creates_one_to_tell_the_others():
    lifetime, made = Lifetime(), communicator()
    lifetime.fail(OWN, lambda: made)
    made.abandon.assert_called_once_with(OWN)
    lifetime = Lifetime()
    lifetime.fail(OWN, Mock(side_effect=OTHER))  # there is no one to tell
    assert lifetime.error is OWN


@pytest.mark.parametrize("end", [Lifetime.close, Lifetime.abort])
def test_after_the_end_nothing_fails(end):
    lifetime, made = opened()
    end(lifetime)
    made.abandon.reset_mock()
    lifetime.fail(OWN, None)
    made.abandon.assert_not_called()
    assert (lifetime.error, str(lifetime)) == (None, "closed")


@pytest.mark.parametrize("end", [Lifetime.close, Lifetime.abort])
def test_it_can_end_while_being_opened(end):
    """No one waits for the creation, and the new communicator leaves immediately."""
    lifetime, made, is_making = Lifetime(), communicator(), threading.Event()
    has_ended = threading.Event()

    def make():
        is_making.set()
        assert has_ended.wait(30)
        return made

    found = []

    def open_it():
        with pytest.raises(ClosedError):
            lifetime.open(make)
        found.append(True)

    thread = threading.Thread(target=open_it)
    thread.start()
    assert is_making.wait(30)
    end(lifetime)
    has_ended.set()
    thread.join(30)
    assert found
    made.begin_close.assert_called()
    assert str(lifetime) == "closed"


def test_a_dropped_lifetime_leaves_unless_it_was_closed():
    for is_closed in (False, True):
        lifetime, made = opened()
        if is_closed:
            lifetime.close()
        del lifetime
        gc.collect()
        assert made.leave.called is not is_closed

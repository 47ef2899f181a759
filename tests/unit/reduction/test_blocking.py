"""Calls that may block for very long run on their own thread."""

import socket
import threading
from concurrent.futures import wait

import pytest
from reduction.blocking import begin, look_up


def test_the_outcome_is_that_of_the_call():
    assert begin(lambda: 3).result(60.0) == 3
    with pytest.raises(SystemExit):
        begin(lambda: exec("raise SystemExit")).result(60.0)


def test_waiting_for_the_call_is_optional():
    is_over, threads = threading.Event(), list[threading.Thread]()

    def block():
        threads.append(threading.current_thread())
        return is_over.wait()

    answer = begin(block)
    assert not answer.cancel()  # or the thread could not report its result
    assert not wait([answer], 0.1).done
    is_over.set()
    assert answer.result(60.0)
    assert threads[0].daemon


def test_names_are_looked_up_for_tcp():
    assert look_up("127.0.0.1", 9).result(60.0)[0][::4] == (socket.AF_INET, ("127.0.0.1", 9))
    with pytest.raises(OSError, match="not known"):
        look_up("no such host.", 9).result(60.0)

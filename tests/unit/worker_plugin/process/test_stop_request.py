"""Requests that this process stop."""

import os
import signal
import threading

import pytest
from reduction.errors import ConfigError

from worker_plugin.process import stop_request


@pytest.fixture(autouse=True)
def not_armed(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(stop_request, "_is_armed", False)
    monkeypatch.setattr(stop_request, "_asked", threading.Event())
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_requests_a_stop_and_calls_the_previous_handler():
    called = []
    signal.signal(signal.SIGTERM, lambda *given: called.append(given[0]))
    stop_request.arm()
    stop_request.arm()
    assert not stop_request._asked.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop_request._asked.is_set()
    assert called == [signal.SIGTERM]


def test_without_a_handler_the_process_lives_on():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop_request.arm()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop_request._asked.is_set()


def test_another_thread_cannot_take_the_signal_over():
    errors = []

    def run():
        try:
            stop_request.arm()
        except ConfigError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "call them first on the main thread" in str(errors[0])

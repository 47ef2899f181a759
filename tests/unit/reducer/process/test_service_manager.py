"""Notifications to a service manager."""

import logging
import socket

import pytest

from reducer.process.service_manager import READY, notify


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_state_arrives(tmp_path, monkeypatch, is_abstract):
    name = f"{'@' if is_abstract else ''}{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify(READY)
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_service_manager_nothing_happens(monkeypatch, caplog, value):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if value is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", value)
    notify(READY)
    assert caplog.records == []


def test_a_missing_socket_is_warned_about(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/nobody")
    with caplog.at_level(logging.WARNING):
        notify(READY)
    assert f"NOTIFY_SOCKET={tmp_path}/nobody did not accept READY=1" in caplog.text

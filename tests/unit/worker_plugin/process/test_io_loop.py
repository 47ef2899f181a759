"""The loop that all communicators share. If its thread cannot be started, no caller gets a loop that never runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from worker_plugin.process import io_loop


def test_a_loop_without_a_thread_is_not_kept(monkeypatch):
    monkeypatch.setattr(io_loop, "_loop", None)
    monkeypatch.setattr(io_loop, "_thread", None)

    def refuse(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="thread"):
            io_loop.io_loop()
    loop = io_loop.io_loop()
    try:
        assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "runs"), loop).result(10) == "runs"
    finally:
        io_loop._stop()

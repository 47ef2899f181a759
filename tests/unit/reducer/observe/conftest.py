"""Shared fixtures for the tests of a reducer's output."""

import asyncio
import threading

import pytest


@pytest.fixture
def loop():
    """An event loop on its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    started = threading.Event()
    loop.call_soon(started.set)
    thread.start()
    started.wait()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0))  # queued work still runs; else it warns
    loop.close()

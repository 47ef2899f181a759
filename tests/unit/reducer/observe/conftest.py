"""What several tests of what a reducer shows use."""

import asyncio
import threading

import pytest


@pytest.fixture
def loop():
    """An event loop that runs on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    started = threading.Event()
    loop.call_soon(started.set)
    thread.start()
    started.wait()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0))  # what is queued still runs: a coroutine left alone warns
    loop.close()

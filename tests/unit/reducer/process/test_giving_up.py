"""A process that cannot restart ends the reducer only if no other process serves."""

import asyncio
import socket

import pytest

from reducer.config import ReducerConfig
from reducer.process import restarts, supervisor
from reducer.process.restarts import FAILED_STARTS_MAX
from reducer.process.serving_process import ServingProcess


class Failing(ServingProcess):
    """Process 0 serves; process 1 has listened once and fails at every start until `lives` reaches `recovers_at`."""

    lives = 0
    recovers_at = 2 * FAILED_STARTS_MAX

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.serves = asyncio.Event()

    async def live(self, siblings):
        self.has_listened.set()
        if self.number == 0 or self.lives >= self.recovers_at:
            self.is_serving = True
            self.serves.set()
            await asyncio.Event().wait()
        self.lives += 1
        await asyncio.sleep(0)
        return 3, None


@pytest.fixture
def two(monkeypatch):
    """Return the keepers of both processes, to be awaited."""
    monkeypatch.setattr(restarts, "PAUSE_S", 0.0)
    monkeypatch.setattr(supervisor, "ServingProcess", Failing)

    def make():
        return supervisor._Supervisor(
            ReducerConfig(bind="127.0.0.1:0", processes=2, memory_limit_bytes=1 << 30)
        )

    return make


async def keep(two, *numbers):
    keepers = [asyncio.create_task(two._keep(two._processes[number])) for number in numbers]
    ends = [asyncio.create_task(wait) for wait in (two._stopping.wait(), two._processes[1].serves.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in (*keepers, *ends):
        task.cancel()
    two._held.close()


def test_it_is_retried_while_another_process_serves(two, caplog):
    async def main():
        made = two()
        await keep(made, 0, 1)
        assert not made._stopping.is_asked
        assert made._processes[1].lives == 2 * FAILED_STARTS_MAX

    asyncio.run(main())
    assert caplog.text.count("process 1 ended and will be restarted exit_code=3") == 2 * FAILED_STARTS_MAX


def test_all_processes_end_if_none_serves(two, caplog):
    async def main():
        made = two()
        await keep(made, 1)
        assert made._stopping.is_asked
        assert made._exit_code == supervisor.EXIT_NO_START
        assert made._processes[1].lives == FAILED_STARTS_MAX

    asyncio.run(main())
    assert "giving up: process 1 ended 5 times in a row before it served" in caplog.text


def test_all_ports_are_held_from_the_start(two):
    async def main():
        made = two()
        for process in made._processes:
            with pytest.raises(OSError, match="Address already in use"):
                socket.create_server(("127.0.0.1", process.port))
        made._held.close()

    asyncio.run(main())

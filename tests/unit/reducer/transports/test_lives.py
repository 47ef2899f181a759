"""Whether the process behind a call is alive, probed at a port on which it listens."""

import asyncio
import socket

import pytest

from reducer.transports import lives
from reducer.transports.lives import Life

PEER = "ipv4:127.0.0.1:40000"


def listener(address="127.0.0.1"):
    return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


async def ended(act, peer=PEER):
    """Return how often the process is reported as ended; `act` gets its life and its listener."""

    calls = []
    with listener("::1" if "::1" in peer else "127.0.0.1") as port:
        life = Life(peer, port.getsockname()[1])
        await act(life, port)
        life.on_lost(lambda: calls.append(1))
        await asyncio.sleep(0.1)
        if life._task is not None:
            await life._task
    return len(calls)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(lives, "LOOKS_S", (0.0, 0.01, 0.02))


async def lives_on(life, port):
    await life._task


async def ends(life, port):
    await life._task
    port.close()


async def ends_a_moment_later(life, port):
    await life._task
    asyncio.get_running_loop().call_later(0.005, port.close)


async def was_never_reached(life, port):
    """Probe as behind a firewall that refuses connections."""
    port.close()
    await life._task


@pytest.mark.parametrize(
    ("act", "peer", "count"),
    [
        *[(ends, peer, 1) for peer in (PEER, "ipv6:%5B::1%5D:40000", "ipv6:[::1]:40000")],
        (ends_a_moment_later, PEER, 1),
        (lives_on, PEER, 0),
        (was_never_reached, PEER, 0),
    ],
)
async def test_a_process_has_ended_if_its_port_was_open_and_is_closed_after_the_call(act, peer, count):
    assert await ended(act, peer) == count


def test_a_process_without_a_port_is_not_probed():
    for life in (Life(PEER, 0), Life("unix:", 7), Life("", 7)):
        life.on_lost(pytest.fail)
        assert life._task is None


async def test_a_silent_host_does_not_count_as_ended(monkeypatch):
    monkeypatch.setattr(lives, "ANSWER_S", 0.01)

    async def hang(*_):
        await asyncio.sleep(60)

    life = Life(PEER, 7)
    monkeypatch.setattr(asyncio, "open_connection", hang)
    await life._task
    life.on_lost(pytest.fail)

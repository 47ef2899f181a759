"""Lab links with delay: the latency of a packet, and an unchanged rate."""

import socket
import threading
import time

import pytest

from benchmarks.lab.network import Network, NetworkUnavailable, check_network
from benchmarks.lab.traffic import Link

DELAY_S = 0.03
RATE_MBIT = 100.0
PORT = 5555
BYTES = 4 << 20


@pytest.fixture
def network():
    try:
        check_network()
        built = Network(2, 0, Link(rate_mbit=RATE_MBIT, delay_ms=1e3 * DELAY_S))
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    with built:
        yield built


def listen(host):
    with host.entered():
        return socket.create_server((host.address, PORT))


def connect(host, to):
    with host.entered():
        return socket.create_connection((to.address, PORT), timeout=10)


def test_a_round_trip_takes_two_delays_and_the_rate_is_unchanged(network):
    one, other = network.workers
    with listen(other) as server:
        began = time.monotonic()
        with connect(one, other) as there, server.accept()[0] as here:
            assert time.monotonic() - began >= 2 * DELAY_S
            sending = threading.Thread(target=there.sendall, args=(bytes(BYTES),), daemon=True)
            sending.start()
            left = BYTES
            while left:
                left -= len(here.recv(1 << 20))
            seconds = time.monotonic() - began
            sending.join(10)
    # The ideal is 0.35 s. With the round trips of TCP's slow start it is about 0.6 s.
    assert BYTES * 8e-6 / RATE_MBIT < seconds
    assert network.traffic().worker_tx_bytes >= BYTES

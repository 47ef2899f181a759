"""Lab links: the actual length of a queue, and which packets fit."""

from __future__ import annotations

import pytest

from benchmarks.lab.network import Network, NetworkUnavailable, check_network
from benchmarks.lab.traffic import FRAME_BYTES, SEGMENT_BYTES, Link


@pytest.mark.parametrize("rate_mbit", [200, 500, 1000, 2000])
def test_a_queue_of_a_millisecond_holds_two_packets_at_any_rate(rate_mbit: float) -> None:
    link = Link(rate_mbit=rate_mbit)
    assert link.queue_ms == link.latency_ms == 1.0
    assert 2 * link.packet_bytes * FRAME_BYTES <= link.queue_bytes * SEGMENT_BYTES
    assert 2 * link.packet_bytes <= link.bucket_bytes <= link.queue_bytes


def test_long_queues_do_not_change_packets_and_bursts() -> None:
    link = Link(rate_mbit=200, latency_ms=20)
    assert (link.packet_bytes, link.bucket_bytes, link.queue_bytes) == (64 << 10, 128 << 10, 500_000)


def test_a_slow_link_reports_its_actual_queue() -> None:
    link = Link(rate_mbit=100)
    assert link.queue_bytes == 16 * FRAME_BYTES
    assert link.name == "100 Mbit/s, 1.94 ms"
    assert link.json()["queue_bytes"] == link.queue_bytes


def test_links_change_their_rate_and_keep_their_queue() -> None:
    try:
        check_network()
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    with Network(2, 0, Link(rate_mbit=200), {"w1": 0.5}) as network:
        assert _buckets(network) == [(25_000_000, 25_000), (12_500_000, 25_000)]
        network.change({"w0": 0.25})
        assert _buckets(network) == [(6_250_000, 25_000), (25_000_000, 25_000)]


def _buckets(network: Network) -> list[tuple[int, int]]:
    """Return each host's rate in bytes per second and its burst in bytes."""
    up, down = ([bucket["options"] for bucket in buckets] for buckets in network._buckets())
    assert up == down
    return [(bucket["rate"], bucket["burst"]) for bucket in up]

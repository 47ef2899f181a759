"""Destinations of a stream's results. A wrong answer must not write into a complete or another collective's result."""

import pytest

from worker_plugin.transports.destinations import Destinations


def expecting(*pushes):
    """Return destinations of pushes (epoch, seq, chunk, bytes), and their memory."""
    destinations = Destinations()
    memories = [memoryview(bytearray(nbytes)) for *_, nbytes in pushes]
    for (epoch, seq, chunk, _), memory in zip(pushes, memories, strict=True):
        destinations.expect(epoch, seq, chunk, memory)
    return destinations, memories


def test_results_have_the_memory_of_their_pushes_in_order_and_once():
    destinations, (first, second) = expecting((1, 0, 0, 8), (1, 0, 1, 4))
    assert destinations.take(1, 0, 0, 8) is first
    assert destinations.take(1, 0, 0, 8) is None
    assert destinations.take(1, 0, 1, 4) is second
    assert destinations.take(1, 0, 1, 4) is None


def test_an_empty_result_has_memory_of_no_bytes():
    destinations, (empty,) = expecting((1, 0, 0, 0))
    assert destinations.take(1, 0, 0, 0) is empty


@pytest.mark.parametrize(
    "result",
    [(1, 0, 1), (1, 1, 0), (1, 9, 0), (1, 0, 9), (0, 0, 0), (2, 0, 0)],
    ids=["next but one", "next collective", "not issued", "no such chunk", "older epoch", "newer epoch"],
)
def test_a_result_out_of_turn_has_no_memory_and_changes_nothing(result):
    destinations, (first, *_) = expecting((1, 0, 0, 8), (1, 0, 1, 8), (1, 1, 0, 8))
    assert destinations.take(*result, 8) is None
    assert destinations.take(1, 0, 0, 8) is first


@pytest.mark.parametrize("nbytes", [0, 1, 7, 9, 4 << 20])
def test_a_result_of_another_size_has_no_memory(nbytes):
    destinations, _ = expecting((1, 0, 0, 8))
    assert destinations.take(1, 0, 0, nbytes) is None
    assert destinations.take(1, 0, 0, 8) is None, "a second result of one push"


def test_a_push_without_memory_keeps_the_order():
    destinations = Destinations()
    memory = memoryview(bytearray(8))
    destinations.expect(2, 0, 0, None)
    destinations.expect(2, 0, 1, memory)
    assert destinations.take(2, 0, 1, 8) is None
    assert destinations.take(2, 0, 0, 8) is None
    assert destinations.take(2, 0, 1, 8) is memory


def test_after_clear_only_later_pushes_count():
    destinations, _ = expecting((1, 0, 0, 8), (1, 0, 1, 8))
    destinations.clear()
    assert destinations.take(1, 0, 0, 8) is None
    memory = memoryview(bytearray(8))
    destinations.expect(2, 0, 0, memory)
    assert destinations.take(1, 0, 1, 8) is None
    assert destinations.take(2, 0, 0, 8) is memory

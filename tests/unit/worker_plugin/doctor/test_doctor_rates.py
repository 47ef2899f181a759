"""How a rate comes out of sums, and an offset out of pings: with a clock that only the fakes advance."""

import pytest
import torch

from worker_plugin.doctor import clocks, rates


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(rates, "time", made)
    return made


class Link:
    """Sums one tensor after the other at a rate; the first ones take longer."""

    def __init__(self, clock, rate, slow_ones=0):
        self.clock, self.rate, self.slow_ones = clock, rate, slow_ones
        self.sizes = []

    def submit(self, tensor):
        self.sizes.append(tensor.nbytes)
        seconds = tensor.nbytes / self.rate * (3 if len(self.sizes) <= self.slow_ones else 1)
        link = self

        class Work:
            def wait(self):
                link.clock.now += seconds

        return Work()


@pytest.mark.parametrize("rate", [1e6, 12.5e6, 1e9, 10e9])
def test_the_rate_of_a_link(clock, rate):
    link = Link(clock, rate)
    began = clock.now
    assert rates.measure(link.submit, 2.0, lambda guess: guess).bytes_per_s == pytest.approx(rate)
    # A fast link is not measured for longer than it was asked, a slow one has a few sums.
    assert clock.now - began < 5.0
    assert max(link.sizes) <= max(4 * rates.PIECE_MOST, rates.PIECE_LEAST)
    assert min(link.sizes) >= rates.PIECE_LEAST


def test_the_beginning_does_not_count(clock):
    link = Link(clock, 10e6, slow_ones=6)
    assert rates.measure(link.submit, 2.0, lambda guess: guess).bytes_per_s == pytest.approx(10e6)


def test_all_ranks_issue_what_the_slowest_can(clock):
    link = Link(clock, 100e6)
    assert rates.measure(link.submit, 1.0, lambda guess: min(guess, 1e6)).bytes_per_s == pytest.approx(100e6)
    assert sum(link.sizes) < 5e6


@pytest.mark.parametrize("offset_ns", [0, 5_000_000, -2_000_000_000])
def test_the_offset_of_a_clock(monkeypatch, offset_ns):
    """The way back takes twice as long as the way to rank 0, which is all that the error has to cover."""
    now = {"ns": 1_700_000_000_000_000_000}
    monkeypatch.setattr(clocks.time, "time_ns", lambda: now["ns"] + offset_ns)

    def send(message, rank):
        now["ns"] += 1_000_000

    def receive(message, rank):
        message.copy_(torch.tensor([now["ns"], now["ns"] + 300_000]))
        now["ns"] += 2_300_000

    monkeypatch.setattr(clocks.dist, "send", send)
    monkeypatch.setattr(clocks.dist, "recv", receive)
    offset_s, error_s = clocks.offset_to_rank_0(1, 2)
    assert error_s == pytest.approx(1.5e-3)
    assert abs(offset_s - offset_ns / 1e9) <= error_s

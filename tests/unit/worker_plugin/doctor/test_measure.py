"""The rate derived from sums, with a clock that only the fakes advance."""

import pytest
import torch

from worker_plugin.doctor import measure


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(measure, "time", made)
    return made


class Done(torch.futures.Future):
    """A future that completes when someone adds a callback or waits for it."""

    def __init__(self, finish):
        super().__init__()
        self._finish = finish

    def _end(self):
        if not self.done():
            self._finish()
            self.set_result(None)

    def add_done_callback(self, callback):
        self._end()
        super().add_done_callback(callback)

    def wait(self):
        self._end()
        return super().wait()


class Link:
    """Sums one tensor after the other. `factor` gives a sum's duration relative to `rate`, by its start time."""

    def __init__(self, clock, rate, factor=lambda passed_s: 1.0):
        self.clock, self.rate, self.factor, self.began = clock, rate, factor, clock.now
        self.sizes = []

    def submit(self, tensor):
        self.sizes.append(tensor.nbytes)

        def finish():
            self.clock.now += tensor.nbytes / self.rate * self.factor(self.clock.now - self.began)

        return Done(finish)


def alone(number):
    return number


@pytest.mark.parametrize("rate", [1e6, 12.5e6, 1e9, 10e9])
def test_the_rate_of_a_link(clock, rate):
    link = Link(clock, rate)
    assert measure.measure(link.submit, 2.0, alone).bytes_per_s == pytest.approx(rate)
    # A constant rate is known soon. A slow link still runs a few sums.
    assert clock.now - link.began < (1.2 if rate > 1e6 else 2.0)
    assert max(link.sizes) <= max(4 * measure.PIECE_MOST, measure.PIECE_LEAST)
    assert min(link.sizes) >= measure.PIECE_LEAST


def test_the_beginning_does_not_count(clock):
    link = Link(clock, 10e6, lambda passed_s: 3.0 if passed_s < 0.3 else 1.0)
    assert measure.measure(link.submit, 2.0, alone).bytes_per_s == pytest.approx(10e6)


def test_a_rate_that_settles_late_is_measured_until_then(clock):
    # It speeds up for 1.2 s, as with a growing credit.
    link = Link(clock, 10e6, lambda passed_s: max(1.0, 4.0 - 2.5 * passed_s))
    assert measure.measure(link.submit, 4.0, alone).bytes_per_s == pytest.approx(10e6, rel=0.02)
    assert 1.2 < clock.now - link.began < 3.0


def test_a_rate_that_never_settles_is_measured_for_the_whole_time(clock):
    # It keeps slowing down: after 1, 2.5 and 4 s a sum takes 2, 3.5 and 5 times as long.
    link = Link(clock, 10e6, lambda passed_s: 1.0 + passed_s)
    assert measure.measure(link.submit, 4.0, alone).bytes_per_s == pytest.approx(10e6 / 3.5, rel=0.1)
    assert 4.0 < clock.now - link.began < 6.0


def test_a_rate_that_goes_up_and_down_is_averaged(clock):
    # One block each at the full rate and at half of it.
    link = Link(clock, 10e6, lambda passed_s: 1.0 + int(passed_s / measure.BLOCK_S) % 2)
    assert measure.measure(link.submit, 4.0, alone).bytes_per_s == pytest.approx(7.5e6, rel=0.03)


def test_measuring_continues_until_all_ranks_have_settled(clock):
    answers = []

    def agree(number):
        # Rates are returned unchanged. For a 0-or-1 vote another rank votes no three times.
        if number > 1:
            return number
        answers.append(number)
        return 0.0 if len(answers) <= 3 else number

    link = Link(clock, 10e6)
    assert measure.measure(link.submit, 4.0, agree).bytes_per_s == pytest.approx(10e6)
    assert answers == [1.0] * 4


def test_an_error_of_a_sum_is_not_lost(clock):
    link = Link(clock, 10e6)

    def submit(tensor):
        future = link.submit(tensor)
        if len(link.sizes) > 20:
            future.set_exception(RuntimeError("a reducer is gone"))
        return future

    with pytest.raises(RuntimeError, match="a reducer is gone"):
        measure.measure(submit, 2.0, alone)


def test_all_ranks_issue_as_much_as_the_slowest_can(clock):
    link = Link(clock, 100e6)
    least = 4e6
    assert measure.measure(link.submit, 1.0, lambda guess: min(guess, least)).bytes_per_s == pytest.approx(
        100e6
    )
    assert max(link.sizes[2:]) == least * 2 * measure.PIECE_S
    assert link.sizes[-1] == least * measure.PIECE_S

"""The rates of results on one stream."""

import pytest

from worker_plugin.core.flow.rate_meter import RateMeter, good_rate

CHUNK = 64 * 1024


def test_results_that_are_read_all_at_once_do_not_raise_the_rate():
    meter, rate = RateMeter(), 60e6
    for step in range(1000):
        meter.on_result(CHUNK, (step - step % 8) * CHUNK / rate)
    assert good_rate(meter.rates) == pytest.approx(rate, rel=0.3)


def test_short_sums_have_one_rate_each():
    meter, rate = RateMeter(), 400e6
    for sums in range(3):
        for step in range(1, 10):
            meter.on_result(CHUNK, sums + step * CHUNK / rate)
        meter.on_pause()
    assert list(meter.rates) == pytest.approx([rate] * 3)


def test_a_pause_does_not_affect_rates():
    meter = RateMeter()
    meter.on_result(CHUNK, 0.0)
    meter.on_pause()
    for step in range(5):
        meter.on_result(CHUNK, 1000.0 + step)
    assert list(meter.rates) == [CHUNK]

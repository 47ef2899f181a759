"""The clock offset derived from pings, with a clock that only the fakes advance."""

import pytest
import torch

from worker_plugin.doctor import clocks


@pytest.mark.parametrize("offset_ns", [0, 5_000_000, -2_000_000_000])
def test_the_offset_of_a_clock(monkeypatch, offset_ns):
    """The way back takes twice as long as the way to rank 0, and the error only has to cover that."""
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

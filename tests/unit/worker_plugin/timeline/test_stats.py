"""The numbers of a recorder, and its totals."""

import time

import pytest
from reduction.model import Collective, DType, ReduceOp

from worker_plugin.timeline.recorder import Recorder
from worker_plugin.timeline.stats import COST_MAX, LATEST, Numbers, shares
from worker_plugin.timeline.totals import Totals

SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 4, 0)


def reduced(recorder, seq):
    progress = recorder.begin(seq, SUM)
    progress.on_push(0, 16)
    progress.on_result(0)
    progress.whole = time.monotonic()
    progress.finish()
    return progress


def recorder():
    made = Recorder(None)
    made.addresses = {0: "a:1"}
    return made


def test_before_the_first_collective_all_numbers_are_0():
    assert not any(Numbers().read(recorder(), 1000).values())


def test_the_first_collective_has_no_share_because_it_waits_for_the_start():
    made = recorder()
    reduced(made, 0)
    found = Numbers().read(made, 0)
    assert (found["collectives"], found["round_s"], found["algbw"]) == (1, 0.0, 0.0)


def test_only_the_latest_have_shares():
    made = recorder()
    for seq in range(LATEST + 50):
        reduced(made, seq)
    spans = made.latest(LATEST)
    assert [span.seq for span in spans] == list(range(50, LATEST + 50))
    assert made.latest(LATEST, since=spans[-2].issued) == spans[-2:]
    assert shares(spans, made.totals, 0).parts.collectives == LATEST


def test_frequent_reads_spend_little_time_on_shares_and_have_exact_counts():
    made, numbers = recorder(), Numbers()
    for seq in range(LATEST):
        reduced(made, seq)
    begin = time.monotonic()
    first = numbers.read(made, 0)
    cost = time.monotonic() - begin
    reduced(made, LATEST)
    again = numbers.read(made, 0)
    if time.monotonic() < begin + cost / 2 / COST_MAX:  # it may have been stopped
        assert again == first | {name: again[name] for name in ("collectives", "comm_s")}
    assert again["collectives"] == LATEST + 1
    assert numbers.read(recorder(), 0)["round_s"] == 0.0
    deadline = time.monotonic() + 30
    while numbers.read(made, 0)["round_s"] == first["round_s"]:
        assert time.monotonic() < deadline


def test_the_first_round_is_seen_at_once():
    made, numbers = recorder(), Numbers()
    reduced(made, 0)
    assert numbers.read(made, 0)["round_s"] == 0.0
    reduced(made, 1)
    assert numbers.read(made, 0)["round_s"] > 0.0


def test_the_ideal_counts_the_bytes_sent_and_not_those_of_the_tensor():
    made = recorder()
    for seq in range(2):
        reduced(made, seq)
    made.totals.bytes_pushed, made.totals.bytes_contributed = 8, 32
    found = shares(made.latest(LATEST), made.totals, 1_000_000)
    assert found.ideal == pytest.approx(min(found.parts.transfer, 4 / 125e9))


def test_the_best_rate_so_far_is_the_ideal_even_if_a_rank_is_always_late():
    made = recorder()
    for seq in range(2):
        reduced(made, seq)
    once = shares(made.latest(LATEST), made.totals, 0)
    again = shares(made.latest(LATEST), made.totals, 0, 4 * once.rate)
    assert (again.rate, again.ideal) == (4 * once.rate, pytest.approx(once.ideal / 4))
    assert shares(made.latest(LATEST), made.totals, 0, once.rate / 4) == once


def test_repeated_pushes_are_counted():
    made = recorder()
    progress = made.begin(0, SUM)
    for _ in range(3):
        progress.on_push(0, 16)
    assert (made.totals.bytes_contributed, made.totals.bytes_repushed) == (48, 32)


def test_time_counts_while_a_collective_is_in_flight():
    totals = Totals()
    totals.begin(1.0)
    totals.begin(2.0)
    totals.end(4.0)
    totals.end(5.0)
    assert (totals.collectives, totals.comm_s, totals.in_flight) == (2, 4.0, 0)
    totals.begin(time.monotonic() - 1)
    assert totals.comm_s >= 5.0
    totals.stop()
    stood = totals.comm_s
    assert stood == totals.comm_s
    totals.end(7.0)
    totals.stop()
    assert (totals.comm_s, totals.in_flight) == (stood, 0)

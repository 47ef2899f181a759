"""The numbers of `stats` for real collectives, and rank 0's log line."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time

import pytest
import torch
from support.expected.hierarchical import be_launched
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import attach
from worker_plugin.process.io_loop import io_loop

LATE_S = 0.1
NUMEL = 300_000
PARTS = ("ideal_s", "copy_s", "credit_s", "ranks_s", "transfer_s", "copy_back_s")


# ---- in the ranks ----


def counted(rank, reducers, job, settings):
    state = rank.state(reducers, job, **settings)
    before = state.stats()
    for _ in range(5):
        rank.wait(state.all_reduce(torch.ones(NUMEL)))
    after = state.stats()
    state.close()
    return before, after, state.stats()


def counted_on_rails(rank, reducers, job):
    be_launched(rank, 2)
    with rank.state(reducers, job, local_group=2) as state:
        early = state.stats()
        for _ in range(3):
            rank.wait(state.all_reduce(torch.ones(NUMEL)))
        return early, state.stats()


def counted_steps(rank, reducers, job):
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(3)]))
    model._set_ddp_runtime_logging_sample_rate(1)
    with attach(model, reducers=reducers, job=job) as state:
        for _ in range(4):
            model(torch.ones(2, 200)).sum().backward()
        return state.stats()


def watched_all_the_time(rank, reducers, job):
    """Train with a slow rank while lines are logged and numbers are read, also during backward passes."""
    model = DistributedDataParallel(torch.nn.Linear(200, 200))
    model._set_ddp_runtime_logging_sample_rate(1)
    is_over = threading.Event()
    with attach(model, reducers=reducers, job=job, report_s=0.1) as state:

        def look():
            while not is_over.wait(0.01):
                state.stats()

        looking = threading.Thread(target=look)
        looking.start()
        for _ in range(60):
            loss = model(torch.ones(2, 200)).sum()
            time.sleep(0.05 * rank.number)
            loss.backward()
        is_over.set()
        looking.join()
        return state.stats()


def failing(rank, reducers, job):
    with rank.state(reducers, job, close_timeout_s=0.5) as state:
        rank.round(state)
        if rank.number:
            rank.hear()
            state.fail(ValueError("out of data"))
        else:
            future = state.all_reduce(torch.ones(5))
            rank.tell("issued")
            rank.error_of(lambda: rank.wait(future))
        return state.stats(), state.stats()


def reported(rank, reducers, job, late, settings):
    """Return the lines of the reports; the ranks in `late` are late in turn."""
    lines = rank.lines("worker_plugin.reporting")
    with rank.state(reducers, job, report_s=0.8, chunk_bytes=65536, **settings) as state:
        for step in range(12):
            if rank.number == late[step % len(late)]:
                time.sleep(LATE_S)
            rank.wait(state.all_reduce(torch.ones(NUMEL)))
        until = time.monotonic() + 20
        while not rank.number and not lines and time.monotonic() < until:
            time.sleep(0.05)
    return lines


def silent(rank, reducers, job):
    """Return whether the I/O loop has a reporting task."""
    os.environ["REDUCTION_REPORT_S"] = "0"
    rank.cleanup.callback(os.environ.pop, "REDUCTION_REPORT_S")
    with rank.state(reducers, job) as state:
        rank.round(state)
        return any("Reporter.run" in repr(task) for task in asyncio.all_tasks(io_loop()))


# ---- tests ----


@pytest.mark.parametrize(
    "settings", [{}, {"transport": "tcp"}, {"transport": "grpc"}, {"wire_dtype": "bf16"}]
)
def test_bytes_and_parts_are_counted(ranks, reducers, job, settings):
    for number, (before, after, closed) in enumerate(
        ranks.run(2, counted, reducers(2), job, settings, group=False)
    ):
        assert set(before) == set(after)
        assert all(type(value) in (int, float) for value in after.values())
        assert (before["rank"], before["world_size"]) == (number, 2)
        assert not any(
            value for name, value in before.items() if name not in ("rank", "world_size", "local_size")
        )
        assert (after["collectives"], after["in_flight"], after["steps"]) == (5, 0, 0)
        wire = 5 * NUMEL * (2 if "wire_dtype" in settings else 4)
        # The chunk size is chosen after the first collectives, and open collectives are then pushed again.
        assert after["bytes_pushed"] - after["bytes_repushed"] == wire <= after["bytes_pulled"]
        assert (after["epochs"] >= 1, after["reducers"], after["resharded"]) == (True, 2, 0)
        assert sum(after[name] for name in PARTS) == pytest.approx(after["round_s"])
        assert 0 < after["efficiency"] <= 1
        assert after["algbw"] == pytest.approx(wire / 5 / after["round_s"], rel=1e-6)
        assert 0 < after["rtt_s"] < after["round_s"]
        assert 4 * after["round_s"] <= after["comm_s"]
        assert closed["comm_s"] == after["comm_s"]


def test_a_known_link_rate_gives_the_ideal(ranks, reducers, job):
    settings = {"link": "100G"}
    for _, after, _ in ranks.run(2, counted, reducers(1), job, settings, group=False):
        assert after["ideal_s"] == pytest.approx(4 * NUMEL * 8 / 100e9)


def test_in_hierarchical_mode_stats_are_those_of_the_rail(ranks, reducers, job):
    for number, (early, after) in enumerate(ranks.run(4, counted_on_rails, reducers(1), job)):
        assert early["local_size"] == 1
        assert (after["rank"], after["world_size"], after["local_size"]) == (number, 4, 2)
        assert (after["collectives"], after["bytes_pushed"] - after["bytes_repushed"]) == (
            3,
            3 * NUMEL * 4 // 2,
        )


def test_ddp_steps_are_counted_and_their_waits_are_measured(ranks, reducers, job):
    for after in ranks.run(2, counted_steps, reducers(1), job):
        assert after["steps"] == 4
        assert after["collectives"] >= 4
        assert 0 <= after["exposed_s"] < 10


def test_reading_stats_does_not_block_ddp(ranks, reducers, job):
    """DDP holds a lock while it waits for sums, so the thread that delivers them must not wait for that lock."""
    for after in ranks.run(2, watched_all_the_time, reducers(1), job):
        assert after["steps"] == 60
        assert after["exposed_s"] >= 0


def test_stats_stand_still_after_a_failure(ranks, reducers, job):
    call = ranks.begin(2, failing, reducers(1), job, group=False)
    assert call.hear(0) == "issued"
    call.tell(1, "fail")
    for first, second in call.answers():
        assert (first["collectives"], first["in_flight"]) == (1, 0)
        assert first == second


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_rank_0_reports_the_late_rank(ranks, reducers, job, transport):
    lines, others = ranks.run(2, reported, reducers(2), job, [1], {"transport": transport}, group=False)
    assert others == []
    # The first line may only cover the start.
    line = next((one for one in lines if "look_at=rank_" in one), lines[-1])
    fields = dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line))
    assert line.startswith(f"report job={job} seconds=")
    assert list(fields) == [
        *("job", "seconds", "steps", "collectives", "step_s", "round_s", "exposed_s", *PARTS),
        *("bytes", "algbw", "efficiency", "look_at", "cause"),
    ]
    assert (fields["steps"], fields["step_s"], fields["exposed_s"]) == ("0", "-", "-")
    assert sum(float(fields[name]) for name in PARTS) == pytest.approx(float(fields["round_s"]), abs=1e-5)
    assert fields["look_at"] == "rank_1"
    assert re.search(r'"rank 1 was last for \d+ % of the chunks, .* look at its data loader', fields["cause"])


def test_no_rank_is_blamed_when_ranks_take_turns_being_late(ranks, reducers, job):
    lines, _ = ranks.run(2, reported, reducers(1), job, [0, 1], {}, group=False)
    known = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]
    looks = [fields["look_at"] for fields in known if int(fields["collectives"]) >= 4]
    # On a busy machine a rank may well stall for a while, and be named in the line for that time.
    assert any(not look.startswith("rank_") for look in looks)


def test_rank_0_is_silent_if_asked_to_be(ranks, reducers, job):
    assert ranks.run(2, silent, reducers(1), job, group=False) == [False, False]

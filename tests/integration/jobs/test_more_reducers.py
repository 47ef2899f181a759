"""Reducers that are added to a file, or removed from it, while a job runs."""

from __future__ import annotations

import time

import pytest
import torch
from support.processes.reducers import status_of

from worker_plugin.core.membership import roster

# ---- in the ranks ----


def sums(rank, text, job):
    """Sum when told to; return whether all steps gave the same bits, and the sum. Report the members at each step."""
    keep = roster.REFRESH_S
    rank.cleanup.callback(setattr, roster, "REFRESH_S", keep)
    roster.REFRESH_S = 0.3
    totals = []
    with rank.state(text, job) as state:
        while True:
            generator = torch.Generator().manual_seed(rank.number)
            tensor = torch.randn(100_000, generator=generator)
            state.all_reduce(tensor).wait()
            totals.append(tensor)
            configuration = state._communicator._driver._core.epochs.configuration
            rank.tell(sorted(member.address for member in configuration.members))
            if rank.hear() == "stop":
                return [torch.equal(total, totals[0]) for total in totals], totals[0]


# ---- tests ----


def step(call):
    time.sleep(0.02)  # there are few cores
    for rank in range(2):
        call.tell(rank, "go on")
    return [call.hear(rank) for rank in range(2)]


def steps_until(call, members):
    deadline = time.monotonic() + 60
    while (now := step(call)) != [members] * 2:
        assert time.monotonic() < deadline, f"the members are still {now}, not {members}"


@pytest.mark.parametrize("has_store", [True, False])
def test_an_added_line_adds_a_member(fresh_ranks, serve, job, tmp_path, has_store):
    first, second, third = (serve().address for _ in range(3))
    path = tmp_path / "reducers"
    path.write_text(f"{first}\n{second}\n")
    ranks = fresh_ranks()
    call = ranks.begin(2, sums, f"file:{path}", job, group=has_store)
    assert [call.hear(rank) for rank in range(2)] == [sorted([first, second])] * 2
    path.write_text(f"{first}\n{second}\n{third}\n")
    steps_until(call, sorted([first, second, third]))
    [seen] = status_of(third)["jobs"]
    assert [peer["rank"] for peer in seen["peers"]] == [0, 1]
    # A running reducer stays when the file loses its line.
    path.write_text(f"{first}\n{third}\n")
    started_at = time.monotonic()
    while time.monotonic() < started_at + 2.0:
        assert step(call) == [sorted([first, second, third])] * 2
    for rank in range(2):
        call.tell(rank, "stop")
    [(same, total), (same_there, total_there)] = call.answers()
    assert all(same)
    assert all(same_there)
    assert torch.equal(total, total_there)
    data = [torch.randn(100_000, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    assert torch.equal(total, data[0] + data[1])
    assert status_of(third)["jobs"] == []


def test_a_reducer_that_is_named_before_it_starts(fresh_ranks, serve, free_port, job, tmp_path):
    first, late = serve().address, f"127.0.0.1:{free_port()}"
    path = tmp_path / "reducers"
    path.write_text(f"{first}\n")
    call = fresh_ranks().begin(2, sums, f"file:{path}", job)
    assert [call.hear(rank) for rank in range(2)] == [[first]] * 2
    path.write_text(f"{first}\n{late}\n")
    started_at = time.monotonic()
    while time.monotonic() < started_at + 1.0:
        assert step(call) == [[first]] * 2
    serve(bind=late)
    steps_until(call, sorted([first, late]))
    for rank in range(2):
        call.tell(rank, "stop")
    call.answers()

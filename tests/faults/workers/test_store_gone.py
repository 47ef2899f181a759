"""The process that serves the store of torch.distributed dies or is stopped. No rank waits longer than promised."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from reduction.errors import WorkerLost
from support.processes.ranks import Died

from worker_plugin.process_group import ReductionOptions

#: The timeout of the store and of the process groups.
LONG = timedelta(minutes=30)
JOIN_S = 2.0


def serve_store(rank):
    """Serve a store until the test is over."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=LONG, wait_for_workers=False)
    rank.tell((os.getpid(), store.port))
    rank.hear()


def lose_the_store(rank, reducers, job):
    """Meet while the store exists; report, for each way to meet again without it, the error."""
    if rank.number == 2:
        return serve_store(rank)
    store = dist.TCPStore("127.0.0.1", rank.hear(), is_master=False, timeout=LONG)
    dist.init_process_group("gloo", store=store, rank=rank.number, world_size=2, timeout=LONG)
    settings = {"join_timeout_s": JOIN_S, "stall_warn_s": JOIN_S / 2}
    options = ReductionOptions(reducers=reducers, **settings)
    late = dist.new_group(backend="reduction", pg_options=options)
    state = rank.state(reducers, job, world_size=2, **settings)
    rank.round(state)
    rank.tell("met")

    def restart():
        state.restart()
        rank.wait(state.all_reduce(torch.ones(3)))

    def sum_again(**more):
        rank.wait(rank.state(reducers, f"{job}-2", **settings, **more).all_reduce(torch.ones(3)))

    def sync():
        more = {"elastic": True, "local_group": 2, "rank": 0, "world_size": 1}
        rank.state(reducers, f"{job}-3", **settings, **more).sync(torch.nn.Linear(1, 1))

    meet = {
        "a second state": sum_again,
        "restart": restart,
        "hierarchical": lambda: sum_again(local_group=2),
        "colocated": lambda: sum_again(colocated="always"),
        "elastic": sync,
        "first collective of a group": lambda: dist.all_reduce(torch.ones(3), group=late),
        "new_group": lambda: dist.new_group(backend="reduction", pg_options=options),
    }
    while ways := rank.hear():
        rank.tell({way: rank.error_of(meet[way]) for way in ways})
    return None


@pytest.mark.parametrize(
    "of_stopped",
    [
        ("a second state", "new_group"),
        *(
            pytest.param((way,), marks=pytest.mark.full)
            for way in ("restart", "hierarchical", "colocated", "elastic", "first collective of a group")
        ),
    ],
    ids=" and ".join,
)
def test_meeting_again_raises_an_error_that_names_the_lost_store(
    fresh_ranks, reducers, job, stopped, of_stopped
):
    ranks = fresh_ranks()
    call = ranks.begin(3, lose_the_store, reducers(1), job, group=False, timeout_s=110.0)
    pid, port = call.hear(2)
    for rank in range(2):
        call.tell(rank, port)
    assert [call.hear(rank) for rank in range(2)] == ["met", "met"]

    def meet_again(*ways):
        for rank in range(2):
            call.tell(rank, ways)
        return [error for rank in range(2) for error in call.hear(rank).items()]

    named = f"the store of torch.distributed at 127.0.0.1:{port} "
    stopped(pid)
    for way, error in meet_again(*of_stopped):
        assert type(error) is WorkerLost, (way, error)
        assert str(error).startswith(f"{named}has not answered within 2 s (join_timeout_s): "), (way, error)
    os.kill(pid, signal.SIGKILL)
    call.wait_for(2)
    for way, error in meet_again("a second state", "restart", "hierarchical", "elastic", "new_group"):
        assert type(error) is WorkerLost, (way, error)
        assert str(error).startswith(f"{named}no longer answers: "), (way, error)
    for rank in range(2):
        call.tell(rank, ())
    assert isinstance(call.answers()[2], Died)

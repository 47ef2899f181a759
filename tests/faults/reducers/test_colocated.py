"""Reducers on the ranks' hosts: the same bits with any of them, with any weights, and when some of them die.

Each rank claims to be on its own host, so each starts a reducer. They listen on the loopback address.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from support.network.certificates import Authority
from support.planes import ANY_PLANE
from support.training.checked import Trainer

from worker_plugin.core import leader
from worker_plugin.discovery import rendezvous

SETTINGS = {"colocated_host": "127.0.0.1", "chunk_bytes": 4096}
SIZES = [1, 1000, 70_000, 300_001, 5]


def alone_on_its_host(rank):
    """Make the others believe that this rank is on another host."""
    before = rendezvous.loopback_id
    rendezvous.loopback_id = lambda: f"host {rank.number}"
    rank.cleanup.callback(setattr, rendezvous, "loopback_id", before)


def weigh(rank, chosen):
    """Make rank 0 assign these weights to the members, in the order of the reducers."""
    before = leader.weights
    leader.weights = lambda links: tuple(chosen[link.id] for link in links)
    rank.cleanup.callback(setattr, leader, "weights", before)


def own_reducers(state):
    return state._communicator._meeting_points[0].own_reducers


def sums(rank, reducers, job, colocated, chosen, **settings):
    """Check sums of many sizes, with several in flight concurrently; return who took part."""
    alone_on_its_host(rank)
    if chosen is not None:
        weigh(rank, chosen)
    with rank.state(reducers, job, colocated=colocated, **SETTINGS, **settings) as state:
        for round_ in range(3):
            tensors = [rank.values(rank.number, (size,), step=round_) for size in SIZES]
            futures = [state.all_reduce(tensor) for tensor in tensors]
            for future, tensor, size in zip(futures, tensors, SIZES, strict=True):
                rank.wait(future)
                assert torch.equal(tensor, rank.expected((size,), step=round_)), f"wrong sum of {size}"
        members = state._communicator._driver._core.epochs.configuration.members
        return [member.weight for member in members]


@pytest.mark.usefixtures("plane")
@ANY_PLANE
def test_without_other_reducers_each_rank_host_starts_one(ranks, job):
    assert ranks.run(3, sums, None, job, None, None) == [[1, 1, 1]] * 3


@pytest.mark.usefixtures("plane")
@ANY_PLANE
@pytest.mark.parametrize("chosen", [(2, 1, 1, 1), (14, 4, 4, 4), (1, 1000, 377, 3)])
def test_the_bits_are_the_same_with_any_weights(ranks, reducers, job, chosen):
    assert ranks.run(3, sums, reducers(1), job, "always", chosen) == [list(chosen)] * 3


def test_always_starts_reducers_beside_enough_others(ranks, reducers, job):
    assert ranks.run(2, sums, reducers(2), job, "always", None) == [[1, 1, 1, 1]] * 2


def sums_with_tls(rank, job, files):
    return sums(rank, None, job, None, None, tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)


def test_reducers_present_the_workers_certificate(ranks, job, tmp_path):
    """A worker with TLS rejects a reducer without TLS, and one whose certificate does not contain its address."""
    authority = Authority(tmp_path)
    assert ranks.run(2, sums_with_tls, job, authority.files("127.0.0.1")) == [[1, 1]] * 2
    assert ", tcp with TLS\n" in ranks.processes[0].log.text


def sums_of_nodes(rank, job):
    """Sum on two nodes of two ranks; each node's lowest rank starts both rails' reducer. Integer sums need no order."""
    before = rendezvous.loopback_id
    rendezvous.loopback_id = lambda: f"host {rank.number // 2}"
    rank.cleanup.callback(setattr, rendezvous, "loopback_id", before)
    with rank.state(None, job, local_group=2, **SETTINGS) as state:
        for round_ in range(3):
            tensor = rank.values(rank.number, (70_001,), torch.int64, round_)
            rank.wait(state.all_reduce(tensor))
            assert torch.equal(tensor, rank.expected((70_001,), torch.int64, round_))
        client = state._communicator._client
        return len(client._driver._core.epochs.configuration.members), len(
            client._meeting_points[0].own_reducers
        )


def test_hierarchical_mode_starts_one_reducer_per_node(ranks, job):
    assert ranks.run(4, sums_of_nodes, job) == [(2, 1), (2, 0), (2, 1), (2, 0)]


def outlive_its_own(rank, job, steps):
    """Train while the reducer on rank 1's host is killed, until it is back; check every gradient."""
    alone_on_its_host(rank)
    with rank.state(None, job, **SETTINGS) as state:
        trainer = Trainer(rank, state)
        trainer.step()
        if rank.number == 1:
            (own,) = own_reducers(state)
            address, pid = own.address, own._process.pid
            os.kill(pid, signal.SIGKILL)
        for _ in range(steps):
            trainer.step()
        if rank.number == 1:
            deadline = time.monotonic() + 30
            while own._process.pid == pid and time.monotonic() < deadline:
                time.sleep(0.05)
            assert (own._process.poll(), own.address) == (None, address)
        stop = torch.zeros(1)
        while not stop:
            trainer.step()
            time.sleep(0.01)
            members = state._communicator._driver._core.epochs.configuration.members
            if rank.number == 0:
                stop += len(members) == 3
            torch.distributed.broadcast(stop, 0)
        assert state.error is None
    return [parameter.detach().sum().item() for parameter in trainer.model.parameters()]


def test_a_killed_reducer_is_restarted_and_no_step_is_lost(ranks, job):
    answers = ranks.run(3, outlive_its_own, job, 10)
    assert answers[0] == answers[1] == answers[2]


def die_with_its_own(rank, job):
    """Let rank 1 die, and its reducer with it."""
    alone_on_its_host(rank)
    state = rank.state(None, job, timeout_s=30.0, **SETTINGS)
    rank.round(state, 50_000)
    if rank.number == 1:
        (own,) = own_reducers(state)
        rank.tell(own._process.pid)
        rank.hear()
        os.kill(os.getpid(), signal.SIGKILL)
    while (error := rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(50_000))))) is None:
        pass
    return type(error).__name__, str(error)


def test_when_a_rank_and_its_reducer_die_the_others_get_an_error_naming_the_rank(fresh_ranks, job):
    call = fresh_ranks().begin(3, die_with_its_own, job, group=True)
    pid = call.hear(1)
    call.tell(1, "die")
    first, _, last = call.answers()
    for kind, text in (first, last):
        assert kind == "WorkerLost", text
        assert "rank 1 (" in text
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}"), "the reducer outlived its parent"


def refuse(rank, job):
    """Return the error when rank 2's host has no such address."""
    alone_on_its_host(rank)
    host = "127.0.0.1" if rank.number < 2 else "203.0.113.9"
    state = rank.state(None, job, colocated_host=host)
    return str(rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3)))))


def test_an_address_the_host_does_not_have_is_an_error_on_all_ranks(ranks, job):
    errors = ranks.run(3, refuse, job)
    assert all("203.0.113.9" in error or "did not start" in error for error in errors), errors
    assert all("rank 2 (" in error for error in errors[:2]), errors

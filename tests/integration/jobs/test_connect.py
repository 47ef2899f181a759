"""`state.connect()`, which makes all ranks and reducers meet before the first collective, and rank 0's log line."""

from __future__ import annotations

import signal
import threading
import time

import pytest
import torch
from reduction.errors import ClosedError, ConfigError, ReducerUnavailable, ResourceExhausted, WorkersMissing
from support.expected.hierarchical import be_launched

from worker_plugin import ReductionState

# ---- in the ranks ----


def connected(rank, reducers, job, size, **settings):
    """Connect twice, then sum; return the `repr` of the state in each phase."""
    be_launched(rank, size)
    with rank.state(reducers, job, local_group=size, **settings) as state:
        seen = [repr(state)]
        state.connect()
        client = state._communicator
        state.connect()
        assert state._communicator is client
        seen.append(repr(state))
        assert rank.wait(state.all_reduce(torch.ones(3))).tolist() == [float(rank.world_size)] * 3
        state.connect()
    assert state.error is None
    assert isinstance(rank.error_of(state.connect), ClosedError)
    return [*seen, repr(state)]


def over_grpc(rank, reducers, job):
    return connected(rank, reducers, job, None, transport="grpc")


def fails(rank, reducers, job, settings):
    with rank.state(reducers, job, **settings) as state:
        error = rank.error_of(state.connect)
        assert state.error is error
        again = rank.error_of(state.connect)
        assert again is error
        assert rank.error_of(lambda: state.all_reduce(torch.ones(3))) is error
    assert state.error is error, "after close as well"
    return error, repr(state)


def one_comes_late(rank, reducers, job):
    """Issue rank 1's first collective, without calling connect, only once rank 0 is waiting."""
    with rank.state(reducers, job) as state:
        if rank.number == 0:
            waiting = threading.Thread(target=state.connect)
            waiting.start()
            rank.tell("waits")
            rank.hear()
            assert waiting.is_alive()
            rank.tell("still waits")
            waiting.join(60)
            assert not waiting.is_alive()
        else:
            rank.hear()
        rank.round(state)


def closed_meanwhile(rank, reducers, job, size, is_signal):
    """Wait on the only rank that joins until another thread or a signal handler closes the state."""
    if rank.number:
        return None, None
    be_launched(rank, size)
    state = rank.state(reducers, job, local_group=size, timeout_s=5.0, close_timeout_s=0.5)
    if is_signal:
        signal.signal(signal.SIGALRM, lambda *_: state.close())
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        threading.Timer(0.3, state.close).start()
    return rank.error_of(state.connect), state.error


def fails_meanwhile(rank, reducers, job, size):
    """Let all ranks wait in connect, except rank 1, which has an error of its own."""
    be_launched(rank, size)
    with rank.state(reducers, job, local_group=size) as state:
        if rank.number == 1:
            state.fail(MemoryError("7 GiB"))
        return rank.error_of(lambda: first_sum(rank, state))


def first_sum(rank, state):
    """Connect and sum. A rank of another node may connect on its own rail before it learns of the error."""
    state.connect()
    rank.wait(state.all_reduce(torch.ones(3)))


def lives(rank, reducers, job):
    """Use two communicators of one state in turn."""
    state = rank.state(reducers, job)
    state.connect()
    rank.round(state)
    state.restart()
    state.connect()
    rank.round(state)


# ---- tests ----


def line_of(job, ranks, addresses, plane="shared memory"):
    many = "s" * (len(addresses) != 1)
    named = f"{len(addresses)} reducer{many} ({', '.join(addresses)}; from the argument)"
    return f"reduction-server: job {job}, {ranks}, {named}, {plane}"


def lines_of(ranks):
    """Return each rank's output since its start."""
    return [process.log.text.splitlines() for process in ranks.processes]


@pytest.mark.parametrize("size", [None, 2], ids=["flat", "hierarchical"])
def test_the_ranks_meet_before_the_first_collective(fresh_ranks, reducers, job, size):
    ranks, addresses = fresh_ranks(), reducers(2)
    answers = ranks.run(4, connected, addresses, job, size)
    for number, (before, between, after) in enumerate(answers):
        assert before == f"<ReductionState: job {job!r}, rank ? of ?, not connected>"
        assert between == f"<ReductionState: job {job!r}, rank {number} of 4, open>"
        assert after == f"<ReductionState: job {job!r}, rank {number} of 4, closed>"
    where = "4 ranks" if size is None else "4 ranks on 2 nodes"
    first, *others = lines_of(ranks)
    assert others == [[], [], []], "a healthy run has one line, of rank 0"
    assert len(first) == 1
    assert first[0].endswith(f" INFO worker_plugin.client: {line_of(job, where, addresses)}"), first


def test_the_line_names_the_plane(fresh_ranks, reducers, job):
    ranks, addresses = fresh_ranks(), reducers(1)
    ranks.run(2, over_grpc, addresses, job, group=False)
    first, other = lines_of(ranks)
    assert other == []
    assert [line.partition(": ")[2] for line in first] == [line_of(job, "2 ranks", addresses, "grpc")]


@pytest.mark.parametrize("size", [None, 2], ids=["flat", "hierarchical"])
def test_with_the_embedded_reducer(fresh_ranks, size):
    ranks = fresh_ranks()
    answers = ranks.run(4, connected, None, None, size)
    assert [before for before, _, _ in answers] == [
        "<ReductionState: no job name yet, rank ? of ?, not connected>"
    ] * 4
    assert all("job 'run-" in between for _, between, _ in answers), "the name that rank 0 made up"
    (line,) = lines_of(ranks)[0]
    assert "job run-" in line
    assert ", 1 private reducer (127.0.0.1:" in line


def test_each_communicator_logs_its_line_once(fresh_ranks, reducers, job):
    ranks, addresses = fresh_ranks(), reducers(1)
    ranks.run(2, lives, addresses, job)
    first, other = lines_of(ranks)
    assert other == []
    assert [line.partition(": ")[2] for line in first] == [line_of(job, "2 ranks", addresses)] * 2


def test_a_wrong_address_is_an_error_at_once(ranks, free_port, job):
    address = f"127.0.0.1:{free_port()}"
    for error, shown in ranks.run(2, fails, [address], job, {"join_timeout_s": 2}, group=False):
        assert type(error) is ReducerUnavailable
        assert address in str(error)
        assert shown.endswith("failed (ReducerUnavailable)>")


def test_a_rank_that_never_joins_is_an_error(ranks, reducers, job):
    settings = {"world_size": 3, "timeout_s": 2}
    for error, _ in ranks.run(2, fails, reducers(1), job, settings, group=False):
        assert type(error) is WorkersMissing


def test_without_ranks_there_is_nothing_to_connect():
    with (
        ReductionState(["127.0.0.1:5"], job="x") as state,
        pytest.raises(ConfigError, match="world_size is None"),
    ):
        state.connect()


def test_a_rank_that_does_not_call_connect_is_waited_for(ranks, reducers, job):
    call = ranks.begin(2, one_comes_late, reducers(2), job)
    assert call.hear(0) == "waits"
    time.sleep(0.3)  # a connect that waits for no other rank would have returned
    call.tell(0, "look")
    assert call.hear(0) == "still waits"
    call.tell(1, "go on")
    call.answers()


@pytest.mark.parametrize("is_signal", [False, True], ids=["thread", "signal"])
@pytest.mark.parametrize("size", [None, 2], ids=["flat", "hierarchical"])
def test_close_ends_connect(ranks, reducers, job, size, is_signal):
    in_group = size is not None
    (error, kept), _ = ranks.run(2, closed_meanwhile, reducers(1), job, size, is_signal, group=in_group)
    assert type(error) is ClosedError
    assert kept is None


@pytest.mark.parametrize("size", [None, 2], ids=["flat", "hierarchical"])
def test_an_error_of_another_rank_ends_connect(ranks, reducers, job, size):
    for error in ranks.run(4, fails_meanwhile, reducers(2), job, size):
        assert type(error) is ResourceExhausted
        assert "MemoryError: 7 GiB" in str(error)

"""States that are dropped without close(): their issued collectives complete, and then they leave in good order.

The garbage collector may drop them on any line of any thread, and must not wait for anything there.
"""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch
from support.expected.hierarchical import be_launched, of_nodes
from support.planes import ANY_PLANE

from worker_plugin import ReductionState

#: Time limit for a state to leave on its own, in seconds.
WAIT_S = 30.0
#: Threads that belong to a communicator.
OF_A_STATE = (
    *("reduction-staging", "reduction-scatter", "reduction-gather", "reduction-watch"),
    "reduction-elastic",
)
SHAPES = ((5,), (300_000,), (1,))


# ---- in the ranks ----


def state_of(rank, reducers, job, size):
    """Return a state without any other reference."""
    if size == "auto":
        return ReductionState(reducers, job=job, local_group="auto")
    if size:
        be_launched(rank, size)
        return ReductionState(reducers, job=job, local_group=size)
    return ReductionState(reducers, job=job, rank=rank.number, world_size=rank.world_size)


def in_flight(rank, state):
    """Issue some collectives; return their futures, and all ranks' contributions."""
    issued = []
    for step, shape in enumerate(SHAPES):
        all_ranks = [rank.values(other, shape, step=step) for other in range(rank.world_size)]
        issued.append((state.all_reduce(all_ranks[rank.number].clone()), all_ranks))
    return issued


def check(rank, issued, size):
    for future, all_ranks in issued:
        expected = rank.fold(all_ranks, "SUM") if size in (None, "auto") else of_nodes(all_ranks, size)
        assert torch.equal(rank.wait(future), expected)


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def ours():
    return [thread.name for thread in threading.enumerate() if thread.name in OF_A_STATE]


def drop(rank, reducers, job, size, is_met):
    """Issue on the last rank after all others have dropped their states; all get the sums, and no state is left."""
    gc.disable()  # dropping must not depend on the garbage collector
    try:
        state = state_of(rank, reducers, job, size)
        if is_met:
            check(rank, in_flight(rank, state), size)
        is_last = rank.number == rank.world_size - 1
        if is_last:
            rank.hear()
        issued = in_flight(rank, state)
        del state
        assert is_last or not issued[0][0].done()
        rank.tell("dropped")  # from here on the last rank may complete the collectives
        check(rank, issued, size)
        del issued
        assert wait_until(lambda: not ours()), ours()
    finally:
        gc.enable()


def drop_where_there_are_no_nodes(rank, reducers, job, is_met):
    """Do the same with local_group, which has no effect here; collectives may wait until that is known."""
    be_launched(rank, 1)
    drop(rank, reducers, job, "auto", is_met)


def missed(rank, reducers, job, size):
    """Drop the state of the first rank; another one that continues learns that it has left."""
    state = state_of(rank, reducers, job, size)
    issued = in_flight(rank, state)
    if rank.number:
        rank.cleanup.enter_context(state)
    else:
        del state
    check(rank, issued, size)
    if rank.number:
        return rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
    return None


def collect_with_all_locks_held(rank, reducers, job, size):
    """Let the collector find a state while other threads hold all locks; return whether the collector returned."""
    gc.disable()
    try:
        state = state_of(rank, reducers, job, size)
        check(rank, in_flight(rank, state), size)
        client = state._communicator
        locks = [client._ending.lock, threading._active_limbo_lock]
        if size:
            locks += [client._writing, client._client._ending.lock]
        cycle = [state]
        cycle.append(cycle)
        go, collected = threading.Event(), threading.Event()

        def collect():
            go.wait()
            gc.collect()
            collected.set()

        threading.Thread(target=collect, daemon=True).start()
        del state, cycle
        for lock in locks:
            lock.acquire()
        go.set()
        came_back = collected.wait(10)
        for lock in locks:
            lock.release()
        del client, locks
        assert wait_until(lambda: not ours()), ours()
        return came_back
    finally:
        gc.enable()


def collect_where_they_are_taken(rank, reducers, job, size):
    """Let the collector find a state on a thread that holds the locks itself and cannot take them twice."""
    gc.disable()
    try:
        state = state_of(rank, reducers, job, size)
        issued = in_flight(rank, state)
        writing = state._communicator._writing
        cycle = [state]
        cycle.append(cycle)
        del state, cycle
        with threading._active_limbo_lock, writing:
            gc.collect()
        check(rank, issued, size)
        assert wait_until(lambda: not ours()), ours()
    finally:
        gc.enable()


def drop_elastic(rank, reducers, job):
    gc.disable()
    try:
        state = ReductionState(reducers, job=job, run="first", rank=0, world_size=1, elastic=True)
        state.sync(torch.nn.Linear(2, 3))
        future = state.all_reduce(torch.ones(3))
        del state
        assert torch.equal(rank.wait(future), torch.ones(3))
        del future
        assert wait_until(lambda: not ours()), ours()
    finally:
        gc.enable()


# ---- tests ----


def test_a_dropped_worker_leaves_its_elastic_job(ranks, reducers, job):
    ranks.run(1, drop_elastic, reducers(1), job, group=False)


@pytest.mark.usefixtures("plane")
@ANY_PLANE
@pytest.mark.parametrize("is_met", [False, True], ids=["before the ranks have met", "afterwards"])
def test_collectives_of_a_dropped_state_complete(ranks, reducers, job, is_met):
    """It used to fail with ClosedError: `ReductionState().all_reduce(tensor).wait()` drops the state immediately."""
    call = ranks.begin(2, drop, reducers(2), job, None, is_met, group=False)
    assert call.hear(0) == "dropped"
    call.tell(1, "go on")
    call.answers()


@pytest.mark.parametrize("is_met", [False, True], ids=["before the ranks have met", "afterwards"])
def test_collectives_complete_in_hierarchical_mode_too(ranks, reducers, job, is_met):
    call = ranks.begin(4, drop, reducers(2), job, 2, is_met)
    for rank in range(3):
        assert call.hear(rank) == "dropped"
    call.tell(3, "go on")
    call.answers()


@pytest.mark.parametrize("is_met", [False, True], ids=["before the ranks have met", "afterwards"])
def test_collectives_complete_if_no_nodes_are_found(ranks, reducers, job, is_met):
    call = ranks.begin(2, drop_where_there_are_no_nodes, reducers(2), job, is_met)
    assert call.hear(0) == "dropped"
    call.tell(1, "go on")
    call.answers()


@pytest.mark.parametrize(("n", "size"), [(2, None), (4, 2)])
def test_a_dropped_rank_sends_goodbye(ranks, reducers, job, n, size):
    errors = ranks.run(n, missed, reducers(2), job, size, group=size is not None)
    assert errors.pop(0) is None
    for error in errors:
        assert type(error).__name__ == "PeerLeft", error
        assert "closed" in str(error)


@pytest.mark.parametrize(("n", "size"), [(2, None), (4, 2)])
def test_a_state_is_collected_whichever_locks_are_held(ranks, reducers, job, n, size):
    call = ranks.begin(n, collect_with_all_locks_held, reducers(2), job, size, group=size is not None)
    assert call.answers() == [True] * n


def test_a_state_is_collected_by_a_thread_that_holds_the_locks(ranks, reducers, job):
    ranks.run(4, collect_where_they_are_taken, reducers(2), job, 2)

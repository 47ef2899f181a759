"""A communicator frees its memory at its end, even if the user keeps its state, a future or an error.

It does so without the garbage collector, which may not run for a long time.
"""

from __future__ import annotations

import gc
import time
import weakref

import pytest
import torch
from reduction.errors import ReductionError
from support.expected.hierarchical import be_launched

from worker_plugin import ReductionState

NUMEL = 300_000
#: Time limit for memory to be freed automatically, in seconds.
WAIT_S = 10.0


# ---- in the ranks ----


def large():
    """Return all tensors that are at least as large as those reduced here."""
    # Not isinstance: it reads an object's __class__, for which a proxy may raise or run code.
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    # Sparse tensors, left by other tests in this process, do not report their size.
    return [one for one in tensors if one.layout == torch.strided and one.nbytes >= NUMEL]


def others(*known):
    """Return the number of large tensors that are not in `known`."""
    return sum(not any(one is other for other in known) for one in large())


def settle(count):
    """Poll a number that should become 0 on its own; return its last value."""
    deadline = time.monotonic() + WAIT_S
    while (number := count()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return number


def after(rank, reducers, job, size, way):
    """Use a communicator until its end; return the number of its remaining tensors, and whether it remains."""
    gc.collect()
    gc.disable()
    try:
        before = large()
        settings = {"rank": rank.number, "world_size": rank.world_size}
        if size:
            be_launched(rank, size)
            settings = {"local_group": size}
        state = ReductionState(reducers, job=job, close_timeout_s=0.5, **settings)
        tensors = [torch.ones(NUMEL) for _ in range(3)]
        rank.wait(state.all_reduce(tensors[0]))
        rank.tell("summed")
        rank.hear()  # otherwise a failing rank could be faster than this sum on the other ranks
        futures = WAYS[way](rank, state, tensors)
        state.close()
        rank.tell("closed")
        left = settle(lambda: others(*before, *tensors))
        error, client = state.error, weakref.ref(state._communicator)
        del state
        is_left = settle(lambda: client() is not None)
        return left, is_left, type(error).__name__, len(futures)
    finally:
        gc.enable()


def close(rank, state, tensors):
    """Close after successful collectives."""
    futures = [state.all_reduce(tensor) for tensor in tensors]
    for future in futures:
        rank.wait(future)
    return futures


def unacknowledged(rank, state, tensors):
    """Keep the last rank from acknowledging results: the others leave with contributions that it may need."""
    if rank.number == rank.world_size - 1:
        state._communicator._driver._core.epochs.acknowledge = lambda: None
    return close(rank, state, tensors)


def in_flight(rank, state, tensors):
    """Issue nothing on the last rank, and close the others."""
    if rank.number == rank.world_size - 1:
        rank.hear()
        return []
    return issue(state, tensors)


def issue(state, tensors):
    """Return the futures of the collectives that can be issued before another rank ends the communicator."""
    futures = []
    try:
        for tensor in tensors:
            futures.append(state.all_reduce(tensor))
    except ReductionError as error:
        error.with_traceback(None)
    return futures


def failing(rank, state, tensors):
    """Make the ranks disagree, which is an error reported by reducers or neighbours."""
    if rank.number == rank.world_size - 1:
        tensors = [tensor[:-1] for tensor in tensors]
    futures = issue(state, tensors[:1])
    # Raised here, the error would also have this thread's frames, which hold the state.
    assert not settle(lambda: state.error is None)
    return futures


def restart(rank, reducers, job):
    """Return whether a restarted state still keeps its previous communicator."""
    gc.disable()
    try:
        with rank.state(reducers, job) as state:
            rank.round(state)
            client = weakref.ref(state._communicator)
            state.restart()
            return settle(lambda: client() is not None)
    finally:
        gc.enable()


WAYS = {"close": close, "unacknowledged": unacknowledged, "in flight": in_flight, "failing": failing}


# ---- tests ----


@pytest.mark.parametrize(
    ("way", "size"),
    [*((way, None) for way in WAYS), *((way, 2) for way in WAYS if way != "unacknowledged")],
)
def test_no_memory_is_held_after_the_end(ranks, reducers, job, size, way):
    n = 4 if size else 2
    ranks.kill()  # objects that earlier tests left in these processes, such as compiled code, must not count
    call = ranks.begin(n, after, reducers(2), job, size, way, group=size is not None)
    assert [call.hear(rank) for rank in range(n)] == ["summed"] * n
    for rank in range(n):
        call.tell(rank, "go on")
    if way == "in flight":
        # A node's other ranks are in an exchange, which ends when the last rank's connections do.
        assert [call.hear(rank) for rank in range(n - 1)] == ["closed"] * (n - 1)
        call.tell(n - 1, "go on")
    for left, is_left, error, _ in call.answers():
        assert (left, is_left) == (0, False)
        assert (error != "NoneType") == (way == "failing") or way == "in flight"


def test_a_restarted_state_does_not_keep_its_previous_communicator(ranks, reducers, job):
    assert ranks.run(2, restart, reducers(1), job, group=False) == [False, False]

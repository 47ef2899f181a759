"""`state.all_reduce` in real processes without a process group."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import signal
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from support.processes.rank_main import Rank

from worker_plugin import ReductionState

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64)
SHAPES = ((), (1,), (0,), (3, 0, 2), (7,), (33, 5), (2, 3, 4, 5), (70_001,))
KIB = 1024


# ---- in the ranks ----


def sum_and_average(rank, reducers, job):
    with rank.state(reducers, job, chunk_bytes=16 * KIB, credit_bytes=64 * KIB) as state:
        for op, dtypes in ((dist.ReduceOp.SUM, FLOATS + INTEGERS), (dist.ReduceOp.AVG, FLOATS)):
            for dtype in dtypes:
                for step, shape in enumerate(SHAPES):
                    tensor = rank.values(rank.number, shape, dtype, step)
                    result = rank.wait(state.all_reduce(tensor, op))
                    expected = rank.expected(shape, dtype, step, op)
                    assert torch.equal(result, expected), (op, dtype, shape, result, expected)
                    assert result.data_ptr() == tensor.data_ptr(), "the value has other storage"
                    assert result.shape == tensor.shape
                    assert torch.equal(tensor, expected)


def rounds(rank, reducers, job):
    with rank.state(reducers, job) as state:
        for step in range(3):
            rank.round(state, step=step)


def special_values(rank, reducers, job):
    huge = torch.finfo(torch.float16).max
    rows = torch.tensor(
        [[float("inf"), float("nan"), -0.0, huge, 1e-8, 1.0], [1.0, 1.0, -0.0, huge, 1e-8, -float("inf")]]
    )
    with rank.state(reducers, job) as state:
        for dtype in FLOATS:
            tensor = rows[rank.number].to(dtype, copy=True)
            rank.wait(state.all_reduce(tensor))
            expected = rank.fold([row.to(dtype) for row in rows], dist.ReduceOp.SUM)
            assert torch.equal(tensor.isnan(), expected.isnan()), (dtype, tensor, expected)
            assert torch.equal(tensor.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)), (dtype, tensor)
            assert torch.signbit(tensor[2])


def many_in_flight(rank, reducers, job):
    sizes = [(13 * step * step % 40_000,) for step in range(60)]
    with rank.state(reducers, job, chunk_bytes=8 * KIB, credit_bytes=16 * KIB) as state:
        tensors = [rank.values(rank.number, shape, step=step) for step, shape in enumerate(sizes)]
        futures = [state.all_reduce(tensor) for tensor in tensors]
        for step, future in reversed(list(enumerate(futures))):
            assert torch.equal(rank.wait(future), rank.expected(sizes[step], step=step)), step
        assert state.error is None


def bits(rank, reducers, job, planes, chunk_bytes):
    """Return a hash of averages; the ranks use the planes in turn."""
    digest = hashlib.sha256()
    transport = planes[rank.number % len(planes)]
    with rank.state(reducers, job, transport=transport, chunk_bytes=chunk_bytes) as state:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            tensor = rank.values(rank.number, (50_003,), dtype)
            digest.update(rank.wait(state.all_reduce(tensor, dist.ReduceOp.AVG)).view(torch.uint8).numpy())
    return digest.hexdigest()


def different_chunk_sizes(rank, reducers, job):
    with rank.state(reducers, job, chunk_bytes=(64, 16)[rank.number] * KIB) as state:
        rank.round(state, 100_000)


def two_threads(rank, reducers, job):
    """Issue in turn from two threads, one for even and one for odd steps; each waits for its own results."""
    turn = threading.Condition()
    issued: list[int] = []
    wrong: list[object] = []

    def issue(parity: int, state: ReductionState) -> None:
        try:
            pending = []
            for step in range(parity, 100, 2):
                tensor = rank.values(rank.number, (501 + step,), step=step)
                with turn:
                    assert turn.wait_for(lambda step=step: len(issued) == step, 30)
                    pending.append((step, state.all_reduce(tensor)))
                    issued.append(step)
                    turn.notify_all()
                if len(pending) > 5:
                    check(*pending.pop(0))
            for item in pending:
                check(*item)
        except BaseException as error:
            wrong.append(error)

    def check(step: int, future: torch.futures.Future[torch.Tensor]) -> None:
        assert torch.equal(rank.wait(future), rank.expected((501 + step,), step=step)), step

    with rank.state(reducers, job) as state:
        threads = [threading.Thread(target=issue, args=(parity, state)) for parity in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(45)
            assert not thread.is_alive()
    assert wrong == []


def first_collective_in_two_threads(rank, reducers, job):
    """Use an unconnected state in two threads; the first one connects it, once."""
    with rank.state(reducers, job) as state:
        start = threading.Barrier(2)
        results: list[torch.Tensor] = []

        def issue() -> None:
            start.wait(10)
            results.append(rank.wait(state.all_reduce(rank.values(rank.number, (10,)))))

        threads = [threading.Thread(target=issue) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(45)
        assert [torch.equal(result, rank.expected((10,))) for result in results] == [True, True]


def closing(rank, reducers, job):
    idle = rank.state(reducers, job)
    idle.close()  # never connected
    idle.close()
    with rank.state(reducers, job) as state:
        rank.round(state)
        assert state.error is None
    state.close()
    state.close()
    errors = [rank.error_of(lambda s=s: s.all_reduce(torch.zeros(3))) for s in (idle, state)]
    assert state.error is None, "closing is no failure"
    return errors


def close_with_collective_in_flight(rank, reducers, job):
    """Close on rank 0 before rank 1 contributes: both get an error, and rank 1's names rank 0."""
    state = rank.state(reducers, job)
    rank.round(state)
    if rank.number == 0:
        future = state.all_reduce(torch.ones(5))
        state.close()
        rank.tell("closed")
        return rank.error_of(lambda: rank.wait(future))
    rank.hear()
    return rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(5))))


def pickling(rank, reducers, job):
    state = rank.state(reducers, job)
    unused = pickle.loads(pickle.dumps(state))
    with unused:
        rank.round(unused)
    rank.round(state)
    state.close()
    used = pickle.loads(pickle.dumps(state))
    with used:  # a closed state's copy is new and open: it only carries the settings
        rank.round(used)


def forking(rank, reducers, job, times):
    """Fork repeatedly with a connected state; the child must hold no socket to a reducer and may exit."""
    ports = {int(address.rpartition(":")[2]) for address in reducers}
    with rank.state(reducers, job) as state:
        for step in range(times):
            tensor = rank.values(rank.number, (5_000,), step=step)
            future = state.all_reduce(tensor)  # in flight during the fork
            child = os.fork()
            if child == 0:
                try:
                    state.close()  # belongs to the parent: nothing to do here
                    os._exit(len(_connections_to(ports)))
                finally:
                    os._exit(99)
            assert torch.equal(rank.wait(future), rank.expected((5_000,), step=step)), step
            assert _exit_code(child) == 0, f"child {step}"


def collecting_in_a_child(rank, reducers, job, times):
    """Collect garbage in a child that holds what the parent has closed: gRPC objects with locks of the parent."""
    gc.disable()  # in the parent, so that the child has something to collect
    go_on = threading.Event()
    with rank.state(reducers, f"{job}-long") as busy:

        def keep_grpc_busy() -> None:
            while not go_on.is_set():
                rank.wait(busy.all_reduce(torch.ones(200_000)))

        thread = threading.Thread(target=keep_grpc_busy)
        thread.start()
        try:
            for life in range(times):
                state = rank.state(reducers, f"{job}-{life}")
                rank.round(state)
                state.close()
                rank.cleanup.pop_all()  # drops its reference to the state
                del state
                child = os.fork()
                if child == 0:
                    gc.collect()
                    os._exit(0)
                assert _exit_code(child) == 0, f"child {life}"
        finally:
            go_on.set()
            thread.join(30)
            gc.enable()


def _exit_code(child: int, timeout_s: float = 10.0) -> int:
    """Wait for a forked child, and kill it if it hangs."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"a forked child hangs after {timeout_s:g} s")


def connections_after_close(rank, reducers, job, lives, until_s):
    """Return the number of sockets to the reducers while a state is used, and some time after all have closed."""
    gc.disable()  # closing must not depend on the garbage collector
    ports = {int(address.rpartition(":")[2]) for address in reducers}
    states = [rank.state(reducers, job) for _ in range(lives)]
    try:
        for state in states:
            rank.round(state)
            during = len(_connections_to(ports))
            state.close()
        deadline = time.monotonic() + until_s
        while _connections_to(ports) and time.monotonic() < deadline:
            time.sleep(0.01)
        return during, len(_connections_to(ports))
    finally:
        gc.enable()


def one_after_another(rank, reducers, job):
    """Use states in turn, two at a time: gRPC has one event queue per process for all of them."""
    with rank.state(reducers, f"{job}-long") as long:
        for life in range(15):
            with rank.state(reducers, f"{job}-short") as state:
                rank.round(state, step=life)
                rank.round(long, step=life)


def _connections_to(ports: set[int]) -> list[str]:
    """Return this process's sockets that are connected to one of the ports."""
    with open("/proc/net/tcp") as table, open("/proc/net/tcp6") as table6:
        lines = [line.split() for line in (*table, *table6) if "local_address" not in line]
    remote = {line[9] for line in lines if int(line[2].rpartition(":")[2], 16) in ports}
    mine = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.removeprefix("socket:[").removesuffix("]") in remote:
            mine.append(target)
    return mine


def forked_child_uses_state(rank, reducers, job):
    """Use a state in the child if it crosses a fork unconnected; it must not disturb any other process."""
    state = rank.state(reducers, job)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            rank.round(state)
            state.close()
            code = 0
        finally:
            os._exit(code)
    return _exit_code(child, 30)


def freed_without_gc(rank, reducers, job):
    """Return whether a closed communicator was freed without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        # Not `rank.state`, which keeps a reference.
        state = ReductionState(reducers, job=job, rank=rank.number, world_size=rank.world_size)
        rank.round(state, 1 << 20)
        client = weakref.ref(state._communicator)
        state.close()
        del state
        deadline = time.monotonic() + 10
        while client() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        return client() is None
    finally:
        gc.enable()


# ---- tests ----


@pytest.mark.usefixtures("plane")
def test_a_closed_communicator_is_freed_without_the_garbage_collector(ranks, reducers, job):
    """A communicator holds as much memory as the gradients, which a reference cycle would keep for long."""
    assert ranks.run(2, freed_without_gc, reducers(2), job, group=False) == [True, True]


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (3, 5)])
def test_sum_and_average_of_every_dtype_and_shape(ranks, reducers, job, n, k):
    ranks.run(n, sum_and_average, reducers(k), job, group=False)


@pytest.mark.usefixtures("plane")
def test_special_values(ranks, reducers, job):
    ranks.run(2, special_values, reducers(2), job, group=False)


@pytest.mark.parametrize("one", [True, False], ids=["one", "comma-separated"])
def test_reducers_as_a_string(ranks, reducers, job, one):
    ranks.run(2, rounds, ",".join(reducers(1 if one else 2)), job, group=False)


@pytest.mark.usefixtures("plane")
def test_two_names_of_one_reducer(ranks, reducers, job):
    """When one stream replaces the other, each rank may keep a different name of the same reducer."""
    both, other = reducers(2)
    names = both, both.replace("127.0.0.1", "localhost"), other
    ranks.run(3, rounds, names, job, group=False)


@pytest.mark.usefixtures("plane")
def test_many_collectives_in_flight_with_little_credit(ranks, reducers, job):
    ranks.run(3, many_in_flight, reducers(2), job, group=False)


def test_bits_are_the_same_for_all_planes_chunk_sizes_reducer_counts_and_runs(ranks, reducers, job):
    """The same holds for ranks that use different planes."""
    ways = [(1, 512), (1, 1), (2, 64), (2, 64), (3, 7), (5, 16)]
    seen = {
        digest
        for planes in (("tcp",), ("grpc",), ("auto",), ("tcp", "grpc", "auto"))
        for run, (k, chunk_kib) in enumerate(ways)
        for digest in ranks.run(
            4, bits, reducers(k), f"{job}-{'-'.join(planes)}-{run}", planes, chunk_kib * KIB, group=False
        )
    }
    assert len(seen) == 1


def test_the_bits_depend_on_the_order_of_addition():
    """Show that the fold order test can fail. Additions in fp32 hide the order for 16-bit types."""
    rows = [Rank.values(rank, (50_003,), torch.float32) for rank in range(4)]
    assert not torch.equal(Rank.fold(rows), Rank.fold(rows[::-1]))


def test_only_rank_0s_chunk_size_counts(ranks, reducers, job):
    ranks.run(2, different_chunk_sizes, reducers(2), job, group=False)


def test_threads_issue_in_lock_step(ranks, reducers, job):
    ranks.run(2, two_threads, reducers(2), job, group=False)


def test_first_collective_in_two_threads(ranks, reducers, job):
    ranks.run(2, first_collective_in_two_threads, reducers(1), job, group=False)


def test_close_is_idempotent_and_final(ranks, reducers, job):
    for errors in ranks.run(2, closing, reducers(2), job, group=False):
        assert [type(error).__name__ for error in errors] == ["ClosedError", "ClosedError"]


def test_close_with_a_collective_in_flight(ranks, reducers, job):
    call = ranks.begin(2, close_with_collective_in_flight, reducers(2), job, group=False, timeout_s=20)
    call.hear(0)
    call.tell(1, "rank 0 closed")
    here, there = call.answers()
    assert type(here).__name__ == "ClosedError"
    assert type(there).__name__ == "PeerLeft"
    assert "rank 0" in str(there)


def test_sequential_and_concurrent_states(ranks, reducers, job):
    """The fixtures check the logs of the ranks and reducers."""
    ranks.run(2, one_after_another, reducers(2), job, group=False)


def test_close_ends_the_connections(fresh_ranks, reducers, job):
    """Connections end even if a state is kept, and without the garbage collector: a DataLoader may fork any time."""
    for during, after in fresh_ranks().run(
        2, connections_after_close, reducers(2), job, 40, 5.0, group=False
    ):
        assert during >= 2
        assert after == 0


def test_a_state_is_pickled_before_and_after_use(ranks, reducers, job):
    ranks.run(2, pickling, reducers(2), job, group=False)


def test_fork_with_a_connected_state(ranks, reducers, job):
    ranks.run(2, forking, reducers(2), job, 50, group=False)


def test_garbage_collection_in_a_forked_child(ranks, reducers, job):
    """In 5 of 100 children, with gRPC's threads busy, this used to hang in one of the parent's locks."""
    ranks.run(1, collecting_in_a_child, reducers(1), job, 40, group=False)


def test_a_forked_child_may_use_an_unconnected_state(fresh_ranks, reducers, job):
    assert fresh_ranks().run(2, forked_child_uses_state, reducers(2), job, group=False) == [0, 0]

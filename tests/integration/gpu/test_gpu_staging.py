"""A GPU's tensors through real reducers, with a fake GPU that writes late and copies slowly, segment by segment."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from reduction.errors import ReductionError
from support.expected.lossy import AVG, SUM, WIRES, assert_same, fold
from support.fakes.fake_gpu import pretend

from worker_plugin.tensors.gpu import streams

KIB = 1024
#: Batches so small that each tensor has many, and copies so slow that chunks are needed before they arrive.
BATCH, DELAY_S = 4 * KIB, 0.001
SIZES = (0, 1, 255, 513, 20_003)


# ---- in the ranks ----


def sums(rank, reducers, job, late_ranks):
    """Sum in one job with ranks with and without a GPU."""
    if rank.number in late_ranks:
        pretend(DELAY_S, BATCH)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        with rank.state(reducers, f"{job}-{dtype}", chunk_bytes=4 * KIB) as state:
            tensors = [rank.values(rank.number, (size,), dtype, step) for step, size in enumerate(SIZES)]
            futures = [state.all_reduce(tensor) for tensor in tensors]
            for step, (size, tensor, future) in enumerate(zip(SIZES, tensors, futures, strict=True)):
                rank.wait(future)
                assert torch.equal(tensor, rank.expected((size,), dtype, step)), (dtype, size)
            assert state.error is None


def wires(rank, reducers, job):
    if rank.number:
        pretend(DELAY_S, BATCH)
    for wire in WIRES:
        with rank.state(reducers, f"{job}-{wire}", wire_dtype=wire) as state:
            for step, size in enumerate(SIZES):
                rows = [rank.values(other, (size,), step=step) for other in range(rank.world_size)]
                tensor = rows[rank.number].clone()
                rank.wait(state.all_reduce(tensor, AVG))
                assert_same(tensor, fold(rows, wire, AVG), (wire, size))


def returns_at_once(rank, reducers, job):
    pretend(0.5, 1 << 20)
    with rank.state(reducers, job) as state:
        rank.round(state)
        began = time.monotonic()
        tensor = torch.ones(1000)
        future = state.all_reduce(tensor)
        assert not future.done()
        assert time.monotonic() - began < 0.4, "it waited for the GPU"
        assert rank.wait(future).unique().tolist() == [2.0]


def one_cannot_copy(rank, reducers, job):
    """Make the GPU of one rank fail in the second collective; all ranks get the error."""
    pretend(0.0, BATCH)
    with rank.state(reducers, job) as state:
        rank.round(state)
        if rank.number == 1:
            streams.Gpu.fetch = lambda *_: 1 / 0
        tensor = torch.full((9000,), 5.0)
        error = rank.error_of(lambda: rank.wait(state.all_reduce(tensor)))
        assert isinstance(error, ReductionError), error
        assert state.error is error
        assert rank.number == 0 or "could not be copied" in str(error)
        state.close()
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("reduction-")]
        assert ours == ["reduction-io"]
        return str(error)


def one_fails_on_the_way(rank, reducers, job):
    """Make the GPU of one rank fail after the first segments have been pushed."""
    pretend(0.0, BATCH)
    with rank.state(reducers, job, chunk_bytes=4 * KIB, credit_bytes=8 * KIB) as state:
        rank.round(state)
        plain = streams.Gpu.fetch

        def fetch(self, encoding, host, first, stop):
            return plain(self, encoding, host, first, stop) if first < 5000 else self.down.put(lambda: 1 / 0)

        if rank.number == 1:
            streams.Gpu.fetch = fetch
        error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(20_000))))
        assert isinstance(error, ReductionError), error
        return str(error)


def closed_on_the_way(rank, reducers, job):
    pretend(0.3, BATCH)
    with rank.state(reducers, job) as state:
        future = state.all_reduce(torch.ones(9000))
        state.close()
        error = rank.error_of(lambda: rank.wait(future))
        return type(error).__name__


def many_steps(rank, reducers, job, steps):
    pretend(DELAY_S, BATCH)
    with rank.state(reducers, job) as state:
        for step in range(steps):
            if step == steps // 2 and rank.number == 0:
                rank.tell("now")
            tensors = [rank.values(rank.number, (9001 + i,), step=step) for i in range(3)]
            for future, (i, tensor) in [
                (state.all_reduce(tensor, SUM), (i, tensor)) for i, tensor in enumerate(tensors)
            ]:
                rank.wait(future)
                assert torch.equal(tensor, rank.expected((9001 + i,), step=step)), step
        assert state.error is None


# ---- tests ----


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("late_ranks", [(0, 1, 2), (1,)])
def test_sums(fresh_ranks, reducers, job, late_ranks):
    fresh_ranks().run(3, sums, reducers(2), job, late_ranks)


def test_wire_dtypes(fresh_ranks, reducers, job):
    fresh_ranks().run(2, wires, reducers(2), job)


def test_issuing_waits_for_nothing(fresh_ranks, reducers, job):
    fresh_ranks().run(2, returns_at_once, reducers(1), job)


def test_a_gpu_that_fails_ends_the_job_on_all_ranks(fresh_ranks, reducers, job):
    ranks = fresh_ranks()
    for number, text in enumerate(ranks.run(2, one_cannot_copy, reducers(2), job)):
        assert "could not be copied" in text, number
    for process in ranks.processes:
        process.log.spare()
    assert "ZeroDivisionError" in ranks.processes[1].log.text


def test_a_gpu_that_fails_midway_ends_the_job_on_all_ranks(fresh_ranks, reducers, job):
    ranks = fresh_ranks()
    for text in ranks.run(2, one_fails_on_the_way, reducers(2), job):
        assert "CUDA error" in text
    for process in ranks.processes:
        process.log.spare()


def test_closing_while_a_tensor_is_in_flight(fresh_ranks, reducers, job):
    assert set(fresh_ranks().run(2, closed_on_the_way, reducers(1), job)) <= {"ClosedError", "PeerLeft"}


def test_a_killed_reducer_changes_no_bit(fresh_ranks, reducers, serve, job):
    doomed = serve()
    call = fresh_ranks().begin(2, many_steps, [*reducers(1), doomed.address], job, 40)
    assert call.hear(0) == "now"
    doomed.kill()
    call.answers()

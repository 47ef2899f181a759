"""Private memory: how much of it is kept, who owns it, and that failures leave nothing half done."""

import threading

import pytest
import torch
from reduction.errors import ClosedError
from reduction.model import Collective, DType, ReduceOp

from worker_plugin.bridge import make_future
from worker_plugin.encoding import Encoding
from worker_plugin.staging import PEAK_TAKES, ArenaPool, Staging, Work


def work_of(tensor):
    what = Collective(ReduceOp.SUM, DType.FLOAT32, tensor.numel(), 0)
    return Work(0, what, tensor, Encoding(tensor), make_future(tensor), None)


@pytest.fixture
def staging():
    staged = []
    one = Staging(ArenaPool(), staged.append)
    one.staged = staged
    yield one
    one.finish(lambda: None)
    one.join(10)


def drain(staging):
    """Wait until the thread has done all that was asked for."""
    done = threading.Event()
    staging._queue.put(done.set)
    assert done.wait(10)


# ---- the pool ----


def test_a_buffer_is_used_again_for_its_size():
    pool = ArenaPool()
    first = pool.take(4096)
    pool.give(first)
    assert pool.take(1024) is not first
    assert pool.take(4096) is first


def test_the_pool_keeps_no_more_than_was_in_use_at_once():
    pool = ArenaPool()
    for nbytes in range(1000, 1100):  # a user who comes with a new size each time
        pool.give(pool.take(nbytes))
    assert sum(buffer.numel() for buffer in pool._free) <= 1099


def test_a_peak_is_forgotten_in_time():
    pool = ArenaPool()
    for buffer in [pool.take(1 << 20) for _ in range(4)]:
        pool.give(buffer)
    for _ in range(2 * PEAK_TAKES):
        pool.give(pool.take(1024))
    assert sum(buffer.numel() for buffer in pool._free) <= 1024


# ---- in ----


def test_a_chunk_is_copied_when_it_is_pushed(staging):
    work = work_of(torch.arange(8.0))
    staging.begin(work)
    before = work.payload(8, 16)
    assert torch.equal(torch.frombuffer(before, dtype=torch.float32), torch.tensor([2.0, 3.0]))
    work.encoding.close()  # as when the result is delivered
    work.tensor.zero_()
    assert torch.equal(torch.frombuffer(work.payload(8, 16), dtype=torch.float32), torch.tensor([2.0, 3.0]))


def test_a_tensor_whose_bytes_cannot_be_had_leaves_nothing_to_push(staging):
    """Otherwise undefined memory would be pushed, and summed."""
    work = work_of(torch.empty(8, device="meta"))
    with pytest.raises(TypeError):
        staging.begin(work)
    assert work.contribution is None


def test_staging_copies_the_whole_tensor(staging):
    work = work_of(torch.arange(8.0))
    staging.stage(work)
    drain(staging)
    assert staging.staged == [work]
    work.tensor.zero_()
    assert torch.equal(work.contribution.view(torch.float32), torch.arange(8.0))


def test_staging_that_fails_says_so_by_a_missing_contribution(staging, caplog):
    work = work_of(torch.empty(8, device="meta"))
    staging.stage(work)
    drain(staging)
    assert staging.staged == [work]
    assert work.contribution is None
    assert "failed" in caplog.text


# ---- out ----


def test_a_result_is_delivered_as_a_whole(staging):
    work = work_of(torch.zeros(2, 4))
    work.result = staging.pool.take(32)
    work.result.view(torch.float32).copy_(torch.arange(8.0))
    staging.deliver(work)
    assert work.future.wait() is work.tensor
    assert torch.equal(work.tensor, torch.arange(8.0).view(2, 4))
    drain(staging)
    assert work.result is None


def test_after_an_error_nothing_is_written(staging):
    work = work_of(torch.zeros(8))
    staging.fail(work, ClosedError("over"))
    staging.fail(work, ClosedError("again"))
    with pytest.raises(ClosedError, match="over"):
        work.future.wait()
    assert torch.equal(work.tensor, torch.zeros(8))


def test_a_callback_that_raises_does_not_end_the_thread(staging):
    first, second = work_of(torch.zeros(8)), work_of(torch.zeros(8))
    first.future.add_done_callback(lambda _: 1 / 0)
    for work in (first, second):
        work.result = staging.pool.take(32)
        staging.deliver(work)
    second.future.wait()


def test_a_callback_does_not_wait_for_its_own_thread(staging):
    work = work_of(torch.zeros(8))
    returned = threading.Event()

    def callback(_):
        staging.join(60)
        returned.set()

    work.future.add_done_callback(callback)
    work.result = staging.pool.take(32)
    staging.deliver(work)
    assert returned.wait(10)


def test_the_end_comes_after_what_was_asked_for():
    order = []
    staging = Staging(ArenaPool(), order.append)
    staging.stage(work := work_of(torch.zeros(8)))
    staging.finish(lambda: order.append("last"))
    staging.join(10)
    assert order == [work, "last"]

"""Private memory: its owner, and failures that leave nothing half done."""

import threading

import pytest
import torch
from reduction.errors import ClosedError
from reduction.model import Collective, DType, ReduceOp

from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.encoding import Encoding
from worker_plugin.tensors.futures import make_future
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.transfer import Transfer
from worker_plugin.timeline.recorder import Progress
from worker_plugin.timeline.totals import Totals


def work_of(tensor):
    what = Collective(ReduceOp.SUM, DType.FLOAT32, tensor.numel(), 0)
    return Transfer(0, what, tensor, Encoding(tensor), make_future(tensor), Progress(0, what, Totals()), None)


@pytest.fixture
def staging():
    one = Staging(ArenaPool(), lambda work: None)
    yield one
    one.finish(lambda: None)
    one.join(10)


def drain(staging):
    """Wait until the thread has done everything it was asked to do."""
    done = threading.Event()
    staging._queue.put(done.set)
    assert done.wait(10)


# ---- in ----


def test_a_chunk_is_copied_when_it_is_pushed(staging):
    work = work_of(torch.arange(8.0))
    staging.begin(work)
    before = work.payload(8, 16)
    assert torch.equal(torch.frombuffer(before, dtype=torch.float32), torch.tensor([2.0, 3.0]))
    work.encoding.close()  # as when the result is delivered
    work.tensor.zero_()
    assert torch.equal(torch.frombuffer(work.payload(8, 16), dtype=torch.float32), torch.tensor([2.0, 3.0]))


def test_a_tensor_whose_bytes_cannot_be_read_leaves_nothing_to_push(staging):
    """Otherwise undefined memory would be pushed and summed."""
    work = work_of(torch.empty(8, device="meta"))
    with pytest.raises(TypeError):
        staging.begin(work)
    assert work.contribution is None


# ---- out ----


def test_a_result_is_delivered_as_a_whole(staging):
    work = work_of(torch.zeros(2, 4))
    staging.prepare_result(work)
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
        staging.prepare_result(work)
        staging.deliver(work)
    second.future.wait()


def test_a_callback_does_not_wait_for_its_own_thread(staging):
    work = work_of(torch.zeros(8))
    returned = threading.Event()

    def callback(_):
        staging.join(60)
        returned.set()

    work.future.add_done_callback(callback)
    staging.prepare_result(work)
    staging.deliver(work)
    assert returned.wait(10)


def test_the_end_comes_after_everything_requested():
    order = []
    staging = Staging(ArenaPool(), lambda work: None)
    work = work_of(torch.zeros(8))
    work.future.add_done_callback(lambda _: order.append("failed"))
    staging.fail(work, ClosedError("over"))
    staging.finish(lambda: order.append("last"))
    staging.join(10)
    assert order == ["failed", "last"]

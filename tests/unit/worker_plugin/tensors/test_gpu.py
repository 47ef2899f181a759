"""Tensors on their way from a fake GPU: the time of each push, and the fate of the memory."""

import contextlib
import gc
import mmap
import os
import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reduction.errors import ConfigError
from reduction.model import Collective, DType, ReduceOp
from support.fakes.fake_gpu import FakeEvent, FakeGpu, garbage

from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.encoding import BlockEncoding, CastEncoding, Encoding, ParameterSlice, Residual
from worker_plugin.tensors.futures import make_future
from worker_plugin.tensors.gpu import downloads, streams
from worker_plugin.tensors.gpu.blocks import GpuBlockEncoding
from worker_plugin.tensors.gpu.streams import PendingCopy
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.supported import admit
from worker_plugin.tensors.transfer import Transfer
from worker_plugin.tensors.wire_dtype import parse
from worker_plugin.timeline.recorder import Progress
from worker_plugin.timeline.totals import Totals

KIB = 1024
SIZES = (0, 1, 700, 256, 513)
#: Encodings on the CPU and on a GPU.
ENCODINGS = {
    "plain": (Encoding, Encoding),
    "bf16": (lambda tensor: CastEncoding(tensor, DType.BFLOAT16),) * 2,
    "fp16": (lambda tensor: CastEncoding(tensor, DType.FLOAT16),) * 2,
    "int8": (lambda tensor: blocks(tensor, "int8"), lambda tensor: blocks(tensor, "int8", GpuBlockEncoding)),
    "fp8": (lambda tensor: blocks(tensor, "fp8"), lambda tensor: blocks(tensor, "fp8", GpuBlockEncoding)),
    "topk": (
        lambda tensor: blocks(tensor, "topk:0.1"),
        lambda tensor: blocks(tensor, "topk:0.1", GpuBlockEncoding),
    ),
}


def blocks(tensor, wire, kind=BlockEncoding):
    """Encode in slices, one empty, one small, none a whole number of blocks; the last takes the rest."""
    sizes = [*SIZES, max(0, tensor.numel() - sum(SIZES))] if tensor.numel() > sum(SIZES) else [tensor.numel()]
    offsets = np.cumsum([0, *sizes[:-1]]).tolist()
    slices = [
        ParameterSlice(offset, size, Residual(torch.zeros(size), torch.zeros(size)))
        for offset, size in zip(offsets, sizes, strict=True)
    ]
    return kind(tensor, parse(wire), slices)


def work_of(tensor, encoding=None, ready=None):
    what = Collective(ReduceOp.SUM, DType.FLOAT32, tensor.numel(), 0)
    return Transfer(
        0, what, tensor, encoding or Encoding(tensor), make_future(tensor), Progress(0, what, Totals()), ready
    )


def happened():
    event = FakeEvent()
    event.happen()
    return event


def total_of(encoding):
    return encoding.numel * 2 if isinstance(encoding, BlockEncoding) else encoding.contribution_bytes


def values_of(numel):
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel))


@pytest.fixture
def staging(monkeypatch):
    """Staging with a fake GPU that is there immediately; its list has the works that could be pushed."""
    device = FakeGpu(torch.device("cpu"))
    monkeypatch.setattr(streams, "Gpu", lambda _: device)
    monkeypatch.setattr(downloads, "BATCH_BYTES", 4 * KIB)
    arrived, news = [], threading.Semaphore(0)

    def on_arriving(work):
        arrived.append(work)
        news.release()

    one = Staging(ArenaPool(), on_arriving)
    one.gpu, one.arrived = device, arrived
    one.next = lambda: news.acquire(timeout=10) and arrived[-1]
    yield one
    device.down.goes_on.set()
    one.finish(lambda: None)
    one.join(10)
    assert not one._thread.is_alive()


# ---- in ----


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 700), (9999,)])
def test_a_contribution_equals_that_of_the_same_tensor_on_the_cpu(staging, name, shape):
    tensor = values_of(int(np.prod(shape))).reshape(shape)
    on_cpu, on_gpu = ENCODINGS[name]
    expected = work_of(tensor, on_cpu(tensor))
    Staging(ArenaPool(garbage), lambda _: None).begin(expected)
    expected_bytes = bytes(expected.payload(0, total_of(expected.encoding)))
    work = work_of(tensor.clone(), on_gpu(tensor.clone()), happened())
    assert staging.download(work)
    assert staging.next() is work
    total = total_of(work.encoding)
    parts = [bytes(work.payload(at, min(at + KIB, total))) for at in range(0, max(1, total), KIB)]
    assert b"".join(parts) == expected_bytes
    again = [bytes(work.payload(at, min(at + KIB, total))) for at in range(0, max(1, total), KIB)]
    assert again == parts, "an epoch later"


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_span_needs_no_element_beyond_those_it_names(name):
    """Otherwise a chunk could be pushed before its elements have arrived."""
    tensor, make = values_of(9999), ENCODINGS[name][0]
    whole = make(tensor)
    whole.open()
    for stop in {*range(KIB, total_of(whole), KIB), total_of(whole)}:
        count = whole.elements(stop)
        assert 0 < count <= 9999
        partial = torch.full_like(tensor, float("nan"))
        partial[:count] = tensor[:count]
        some = make(partial)
        some.open()
        begin, end = whole.where(stop - KIB if stop % KIB == 0 else stop - stop % KIB, stop)
        ours, theirs = bytearray(end - begin), bytearray(end - begin)
        start = stop - KIB if stop % KIB == 0 else stop - stop % KIB
        some.encode(start, stop, memoryview(ours))
        fresh = make(tensor)
        fresh.open()
        fresh.encode(start, stop, memoryview(theirs))
        assert ours == theirs, (name, stop)
    assert whole.elements(total_of(whole)) == 9999


def test_the_first_segment_is_enough_to_begin(staging):
    work = work_of(values_of(8 * KIB), ready=happened())
    held, copies = threading.Event(), []
    plain = staging.gpu.fetch

    def fetch(encoding, host, first, stop):
        if first:
            staging.gpu.down.put(held.wait)
        copies.append((first, stop))
        return plain(encoding, host, first, stop)

    staging.gpu.fetch = fetch
    staging.download(work)
    assert staging.next() is work
    assert copies == [(at, at + KIB) for at in range(0, 8 * KIB, KIB)]
    assert torch.equal(torch.frombuffer(work.payload(0, 4 * KIB), dtype=torch.float32), work.tensor[:KIB])
    late = threading.Timer(0.2, held.set)
    late.start()
    payload = work.payload(4 * KIB, 5 * KIB)
    assert held.is_set(), "pushed before it was there"
    assert torch.equal(torch.frombuffer(payload, dtype=torch.float32), work.tensor[KIB : KIB + KIB // 4])
    late.join()


def test_nothing_is_read_before_it_is_written(staging):
    written, tensor = FakeEvent(), torch.zeros(8)
    staging.download(work_of(tensor, ready=written))
    tensor.copy_(torch.arange(8.0))
    assert not staging.arrived
    written.happen()
    assert torch.equal(
        torch.frombuffer(staging.next().payload(0, 32), dtype=torch.float32), torch.arange(8.0)
    )


def test_the_order_of_collectives_is_kept(staging):
    assert not staging.download(work_of(torch.ones(4))), "no GPU was seen yet"
    first, second = work_of(torch.ones(4), ready=FakeEvent()), work_of(torch.ones(4))
    assert staging.download(first)
    assert staging.download(second), "on the CPU, but behind one that is not"
    assert not staging.arrived
    first.ready.happen()
    staging.next()
    staging.next()
    assert staging.arrived == [first, second]
    assert second.contribution is None
    staging.begin(second)
    assert second.payload(0, 4)


def test_a_tensor_that_cannot_be_copied_has_no_contribution(staging, caplog):
    ready = FakeEvent()
    ready.happen(RuntimeError("an illegal memory access was encountered"))
    staging.download(work_of(torch.ones(8), ready=ready))
    assert staging.next().contribution is None
    assert "illegal memory access" in caplog.text
    staging.gpu.fetch = lambda *_: 1 / 0
    staging.download(work_of(torch.ones(8), ready=happened()))
    assert staging.next().contribution is None


def test_a_segment_that_fails_later_is_not_pushed(staging):
    work = work_of(values_of(2 * KIB), ready=happened())
    plain = staging.gpu.fetch
    staging.gpu.fetch = lambda encoding, host, first, stop: (
        staging.gpu.down.put(lambda: 1 / 0) if first else plain(encoding, host, first, stop)
    )
    staging.download(work)
    assert staging.next().payload(0, 4 * KIB)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="CUDA error"):
            work.payload(4 * KIB, 8 * KIB)


def test_a_pending_copy_waits_only_for_what_is_requested():
    copy, events = PendingCopy(), [FakeEvent() for _ in range(3)]
    for index, event in enumerate(events):
        copy.add(index * 10, event)
    copy.wait(0)
    events[0].happen()
    copy.wait(10)
    events[1].happen()
    events[2].happen()
    copy.wait(11)
    assert len(copy._batches) == 1
    copy.wait(10**9)
    assert not copy._batches


# ---- out, and the memory ----


@pytest.mark.parametrize("name", ENCODINGS)
def test_results_come_back_through_the_gpu(staging, name):
    tensor, (on_cpu, on_gpu) = values_of(9999), ENCODINGS[name]
    work = work_of(tensor, on_gpu(tensor), happened())
    staging.download(work)
    assert staging.next() is work
    work.payload(0, total_of(work.encoding))
    used = staging.gpu.pool.used_bytes
    assert used == work.contribution.numel() + work.result.numel()
    assert used <= 2 * tensor.nbytes, "page-locked: at most two times the gradients"
    plain = on_cpu(tensor.clone())
    received = values_of(work.result.numel() // 2).bfloat16() if name == "topk" else work.contribution
    work.result.copy_(received.view(torch.uint8))
    plain.decode(work.result.clone())
    staging.deliver(work)
    assert work.future.wait() is tensor
    assert torch.equal(tensor, plain.tensor)
    staging.release(work)
    staging.finish(lambda: None)
    staging.join(10)
    assert staging.gpu.pool.used_bytes == 0, "all of it can be used again"


def test_page_locked_memory_is_not_kept_for_longer_than_a_communicator_lives(staging):
    work = work_of(torch.ones(1000), ready=happened())
    staging.download(work)
    assert staging.next() is work
    gpus = staging._downloads._gpus
    assert len(gpus) == 1
    staging.finish(lambda: None)
    staging.join(10)
    assert gpus == {}


def test_a_copy_back_that_fails_fails_the_future(staging, caplog):
    work = work_of(torch.zeros(8), ready=happened())
    staging.download(work)
    staging.next()
    staging.gpu.copy_back = lambda write, complete: 1 / 0
    staging.deliver(work)
    with pytest.raises(ZeroDivisionError):
        work.future.wait()


def test_the_owner_of_a_callback_is_freed_after_the_end(monkeypatch):
    monkeypatch.setattr(streams, "Gpu", FakeGpu)

    class Owner:
        def __init__(self):
            self.staging = Staging(ArenaPool(), self.on_arriving)
            self.came = threading.Event()

        def on_arriving(self, work):
            self.came.set()

    owner = Owner()
    owner.staging.download(work_of(torch.ones(4), ready=happened()))
    assert owner.came.wait(10)
    owner.staging.finish(lambda: None)
    owner.staging.join(10)
    gone = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert gone() is None, "a cycle keeps it"
    finally:
        gc.enable()


def test_ending_waits_for_both_threads_but_not_from_them(staging):
    returned = threading.Event()
    work = work_of(torch.ones(4), ready=happened())
    work.future.add_done_callback(lambda _: (staging.join(60), returned.set()))
    staging.download(work)
    staging.next()
    staging.deliver(work)
    assert returned.wait(10)


class Cudart:
    """Stands in for torch's bindings of libcudart."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self):
        self.locked = {}
        self.code = 0

    def cudaHostRegister(self, address, nbytes, flags):
        assert flags == 0
        if self.code == 0:
            self.locked[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address):
        del self.locked[address]

    def cudaGetErrorString(self, code):
        return f"error {code}"


@pytest.fixture
def cudart(monkeypatch):
    one = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: one)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    yield one
    unlocked()  # memory that a test still held at its end must not reach the real cudart


def lock(nbytes, *kept):
    return streams._page_locked(torch.device("cuda", 0), kept, nbytes)


def unlocked():
    """Wait until the thread that unlocks memory is done."""
    done = threading.Event()
    streams._to_unlock.put(done.set)
    assert done.wait(10)


def test_page_locked_memory_is_unlocked(cudart):
    waited = []
    stream = SimpleNamespace(synchronize=lambda: waited.append(len(cudart.locked)))
    buffer = lock(10_001, stream, stream)
    assert buffer.numel() == 10_001
    assert cudart.locked == {buffer.data_ptr(): 10_001}
    assert buffer.data_ptr() % 4096 == 0, "no page of it is another's"
    buffer.fill_(7)
    del buffer
    unlocked()
    assert cudart.locked == {}
    assert waited == [1, 1], "it was unlocked before the copies were done"
    assert lock(0).numel() == 0
    cudart.code = 2
    with pytest.raises(MemoryError, match=r"4096 bytes .* error 2"):
        lock(4096)


def test_releasing_memory_does_not_wait(cudart):
    """The GPU may be busy for long, and the thread that lets go may have streams to serve."""
    goes_on = threading.Event()
    buffer = lock(4096, SimpleNamespace(synchronize=goes_on.wait))
    del buffer
    assert cudart.locked
    goes_on.set()
    unlocked()
    assert not cudart.locked


def test_memory_is_collected_whichever_locks_are_held(cudart):
    """Garbage collection runs at any line of any thread, for example while a thread is being started."""
    buffer = lock(4096)
    cycle = [buffer]
    cycle.append(cycle)
    del buffer
    with threading._active_limbo_lock, streams._unlocking_lock:
        del cycle
        gc.collect()
    unlocked()
    assert cudart.locked == {}


def test_memory_of_a_gpu_that_failed_is_freed(cudart):
    def fail():
        raise RuntimeError("CUDA error")

    buffer = lock(4096, SimpleNamespace(synchronize=fail))
    gone = weakref.ref(buffer)
    del buffer
    unlocked()
    assert gone() is None


def test_a_forked_child_neither_unlocks_nor_unmaps_its_parents_memory(cudart):
    nbytes = 64 << 20
    buffer = lock(nbytes, SimpleNamespace(synchronize=lambda: None))
    child = os.fork()
    if not child:  # with other memory of that size, which would reuse the address if it was free
        status = 1
        with contextlib.suppress(BaseException):
            own = mmap.mmap(-1, nbytes)
            own[:4] = b"mine"
            del buffer
            gc.collect()
            status = 0 if own[:4] == b"mine" and cudart.locked else 2
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert cudart.locked == {buffer.data_ptr(): nbytes}


def test_a_graph_is_refused(monkeypatch):
    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)
        is_cuda = True

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ConfigError, match="CUDA graph"):
        admit(torch.ones(3).as_subclass(OnGpu), torch.distributed.ReduceOp.SUM)

"""`state.all_reduce` of tensors on a GPU: values, streams, memory, failures. Ranks share the GPU."""

from __future__ import annotations

import hashlib
import os
import time

import numpy as np
import pytest
import torch
from reduction.codecs import BLOCK_CODECS
from reduction.errors import ConfigError, WorkerLost
from support.expected.lossy import AVG, SUM, WIRES, assert_same, fold
from support.processes.ranks import Died

from worker_plugin.tensors.digest import digest
from worker_plugin.tensors.gpu import streams
from worker_plugin.tensors.gpu.codecs import codec_of
from worker_plugin.tensors.wire_dtype import parse

KIB = 1024
SIZES = ((), (0,), (1,), (33, 5), (70_001,), (3 << 20,))
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64)
#: GPU clock cycles: some tenths of a second.
LONG = 1_000_000_000


# ---- in the ranks ----


def device_of(rank, on_cpu=()):
    return torch.device("cpu") if rank.number in on_cpu else torch.device("cuda", 0)


def sums(rank, reducers, job, on_cpu):
    """Return a digest of all results."""
    device, results = device_of(rank, on_cpu), hashlib.sha256()
    with rank.state(reducers, job) as state:
        for op, dtypes in ((SUM, FLOATS + INTEGERS), (AVG, FLOATS)):
            for dtype in dtypes:
                for step, shape in enumerate(SIZES):
                    tensor = rank.values(rank.number, shape, dtype, step).to(device)
                    result = rank.wait(state.all_reduce(tensor, op))
                    assert result.data_ptr() == tensor.data_ptr()
                    expected = rank.expected(shape, dtype, step, op)
                    assert torch.equal(tensor.cpu(), expected), (op, dtype, shape)
                    results.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return results.hexdigest()


def wires(rank, reducers, job, on_cpu):
    device = device_of(rank, on_cpu)
    for wire in WIRES:
        with rank.state(reducers, f"{job}-{wire}", wire_dtype=wire) as state:
            for step, size in enumerate((0, 1, 513, 100_003, 3 << 20)):
                rows = [rank.values(other, (size,), step=step) for other in range(rank.world_size)]
                tensor = rows[rank.number].to(device, copy=True)
                rank.wait(state.all_reduce(tensor, AVG))
                assert_same(tensor.cpu(), fold(rows, wire, AVG), (wire, size))


def late_writers_and_late_readers(rank, reducers, job):
    """Use streams other than the default one, each delayed by a long kernel."""
    device, side, numel = device_of(rank), torch.cuda.Stream(), 5 << 20
    with rank.state(reducers, job) as state:
        for step, writer in enumerate([torch.cuda.current_stream(), side, torch.cuda.Stream()]):
            values = rank.values(rank.number, (numel,), step=step).to(device)
            tensor = torch.full_like(values, float("nan"))
            torch.cuda.synchronize()
            with torch.cuda.stream(writer):
                torch.cuda._sleep(LONG)
                tensor.copy_(values)
                is_written = torch.cuda.Event()
                is_written.record()
                future = state.all_reduce(tensor)
                assert not is_written.query(), "issuing has waited for the GPU"
            with torch.cuda.stream(side):
                future.wait()
                seen = tensor.clone()
                tensor.zero_()
            side.synchronize()
            assert torch.equal(seen.cpu(), rank.expected((numel,), step=step)), step


def nobody_waits(rank, reducers, job):
    """The memory of a result that no one waits for is not reused while it is being written."""
    device, numel = device_of(rank), 4 << 20
    with rank.state(reducers, job) as state:
        for step in range(20):
            future = state.all_reduce(torch.ones(numel, device=device))
            while not future.done():
                time.sleep(0.0001)
            del future
            other = torch.full((numel,), 7.0, device=device)
            torch.cuda.synchronize()
            time.sleep(0.01)
            assert other.unique().tolist() == [7.0], step


def memory(rank, reducers, job, wire):
    """Return (peak page-locked bytes, peak additional bytes on the GPU), in gradients; buckets of 4 MiB."""
    device, locked, most = device_of(rank), [0], 0
    plain_lock, plain_unlock, sizes = streams._page_locked, streams._unlock, {}

    def lock(device, streams, nbytes):
        buffer = plain_lock(device, streams, nbytes)
        sizes[buffer.data_ptr()] = nbytes
        locked[0] += nbytes
        return buffer

    def unlock(device, address, streams, memory):
        locked[0] -= sizes.pop(address)
        plain_unlock(device, address, streams, memory)

    streams._page_locked, streams._unlock = lock, unlock
    buckets = [torch.ones(1 << 20, device=device) for _ in range(16)]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with rank.state(reducers, job, wire_dtype=wire) as state:
        for _ in range(12):
            for future in [state.all_reduce(bucket, AVG) for bucket in buckets]:
                rank.wait(future)
            most = max(most, locked[0])
            time.sleep(0.2)  # about one compute phase: until the others are known to have the results
    total = sum(bucket.nbytes for bucket in buckets)
    more = (torch.cuda.max_memory_allocated() - before) / total
    return most / total, more


def dies_or_sees(rank, reducers, job):
    """Rank 1 exits in the middle; after the error nothing may be written into rank 0's tensors."""
    device = device_of(rank)
    with rank.state(reducers, job) as state:
        rank.wait(state.all_reduce(torch.ones(1000, device=device)))
        tensors = [torch.ones(2 << 20, device=device) for _ in range(4)]
        futures = [state.all_reduce(tensor) for tensor in tensors]
        if rank.number == 1:
            rank.tell("now")
            time.sleep(60)
        errors = [rank.error_of(lambda future=future: rank.wait(future)) for future in futures]
        assert isinstance(errors[-1], WorkerLost) or errors[-1] is None, errors
        for tensor in tensors:
            tensor.fill_(5)
        torch.cuda.synchronize()
        time.sleep(1)
        assert all(tensor.unique().tolist() == [5.0] for tensor in tensors), "late data"
        return [type(error).__name__ for error in errors]


def sees_another_die(rank, reducers, job):
    """Kill rank 1 in a step. Return rank 0's error, how many seconds it took, and the freed bytes."""
    device, held = device_of(rank), 1 << 30
    with rank.state(reducers, job) as state:
        rank.wait(state.all_reduce(torch.ones(1000, device=device)))
        if rank.number == 1:
            memory = torch.zeros(held, dtype=torch.uint8, device=device)
            torch.cuda.synchronize()
            rank.tell(memory.nbytes)
            time.sleep(60)
        rank.hear()
        free = torch.cuda.mem_get_info(device)[0]
        future = state.all_reduce(torch.ones(2 << 20, device=device))
        rank.tell("in a step")
        began = time.monotonic()
        error = rank.error_of(lambda: rank.wait(future))
        seconds = time.monotonic() - began
        while torch.cuda.mem_get_info(device)[0] < free + held and time.monotonic() < began + 20:
            time.sleep(0.1)
        return f"{type(error).__name__}: {error}", seconds, torch.cuda.mem_get_info(device)[0] - free


def casts(rank, lower_halves):
    """Compare float32 rounded by the GPU and by the CPU: all upper halves, with NaNs staying NaNs."""
    uppers = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in lower_halves:
        values = torch.from_numpy((uppers | np.uint32(lower)).view(np.float32))
        for dtype in (torch.bfloat16, torch.float16):
            ours, theirs = values.to(device_of(rank)).to(dtype).cpu(), values.to(dtype)
            is_nan = theirs.isnan()
            assert torch.equal(ours.isnan(), is_nan), (dtype, lower)
            assert torch.equal(ours.view(torch.int16)[~is_nan], theirs.view(torch.int16)[~is_nan]), (
                dtype,
                lower,
            )


def block_codecs(rank, name):
    """Compare the GPU's contributions, and its decoding of them, with those of the CPU: any bits, and ties."""
    wire, random, count = parse(name), np.random.default_rng(1), 1 << 20
    codec, ours = BLOCK_CODECS[wire.dtype], codec_of(wire, device_of(rank))
    for values in (
        random.standard_normal(count).astype(np.float32),
        random.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32),
        (random.integers(-254, 255, count) / 2).astype(np.float32),
        (random.standard_normal(count) * 2.0**-112).astype(np.float32),
    ):
        rows = values.reshape(-1, wire.block)
        expected, read = np.empty(len(rows) * wire.push_block_bytes, np.uint8), np.empty_like(rows)
        codec.encode(rows.copy(), expected)
        codec.start(read, expected)
        contribution = ours.encode(torch.from_numpy(rows).to(device_of(rank)))
        assert torch.equal(contribution.view(-1).cpu(), torch.from_numpy(expected)), name
        np.testing.assert_array_equal(ours.sent(contribution).cpu().numpy(), read)


def one_gpu_fails(rank, reducers, job):
    """After a failed kernel of the user's, nothing works on rank 1's GPU any more."""
    device = device_of(rank)
    with rank.state(reducers, job) as state:
        rank.wait(state.all_reduce(torch.ones(1000, device=device)))
        tensor = torch.ones(1000, device=device)
        if rank.number == 1:
            tensor[torch.tensor([5000], device=device)] = 1
        error = rank.error_of(lambda: rank.wait(state.all_reduce(tensor)))
        return "" if error is None else str(error)


def forks_under_way(rank, reducers, job):
    """Fork DataLoader children, which inherit none of it."""
    device, children = device_of(rank), []
    with rank.state(reducers, job) as state:
        for step in range(10):
            tensors = [rank.values(rank.number, (500_001,), step=step).to(device) for _ in range(3)]
            futures = [state.all_reduce(tensor) for tensor in tensors]
            if not (child := os.fork()):
                time.sleep(0.2)
                os._exit(0)
            children.append(child)
            for future, tensor in zip(futures, tensors, strict=True):
                rank.wait(future)
                assert torch.equal(tensor.cpu(), rank.expected((500_001,), step=step)), step
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def in_a_graph(rank, reducers, job):
    device = device_of(rank)
    with rank.state(reducers, job) as state:
        rank.wait(state.all_reduce(torch.ones(1000, device=device)))
        time.sleep(0.2)  # other threads' work on the GPU would break the capture, as it does NCCL's
        tensor, graph = torch.ones(1000, device=device), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.mul_(2)
            error = rank.error_of(lambda: state.all_reduce(tensor))
        assert isinstance(error, ConfigError), error
        assert "CUDA graph" in str(error)
        graph.replay()
        rank.wait(state.all_reduce(tensor))
        assert tensor.unique().tolist() == [2.0 * rank.world_size]


def under_way_when_a_reducer_dies(rank, reducers, job, steps):
    device = device_of(rank)
    with rank.state(reducers, job) as state:
        for step in range(steps):
            if step == steps // 2 and rank.number == 0:
                rank.tell("now")
            tensors = [rank.values(rank.number, (500_001 + i,), step=step).to(device) for i in range(3)]
            for i, future in enumerate([state.all_reduce(tensor) for tensor in tensors]):
                rank.wait(future)
                assert torch.equal(tensors[i].cpu(), rank.expected((500_001 + i,), step=step)), step


# ---- tests ----


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("on_cpu", [(), (1,)])
def test_sums(ranks, reducers, job, on_cpu):
    """With `on_cpu`, ranks with and without a GPU agree bit for bit."""
    assert len(set(ranks.run(3, sums, reducers(2), job, on_cpu))) == 1


@pytest.mark.parametrize("on_cpu", [(), (0,)])
def test_wire_dtypes(ranks, reducers, job, on_cpu):
    ranks.run(2, wires, reducers(2), job, on_cpu)


def test_streams(ranks, reducers, job):
    ranks.run(2, late_writers_and_late_readers, reducers(2), job)


def test_memory_of_a_result_that_nobody_waits_for(ranks, reducers, job):
    ranks.run(2, nobody_waits, reducers(2), job)


@pytest.mark.parametrize("wire", [None, "bf16", "int8"])
def test_memory(fresh_ranks, reducers, job, wire):
    for locked, more in fresh_ranks().run(2, memory, reducers(2), job, wire):
        assert locked <= 2.0
        assert more <= 0.25


def test_no_data_is_written_late(fresh_ranks, reducers, job):
    doomed = fresh_ranks()
    call = doomed.begin(2, dies_or_sees, reducers(1), job)
    assert call.hear(1) == "now"
    doomed.processes[1].log.spare()
    doomed.processes[1].process.kill()
    survivor, dead = call.answers()
    assert isinstance(dead, Died)
    assert survivor[-1] in ("WorkerLost", "NoneType")


def test_a_killed_worker_is_named_and_its_memory_is_freed(fresh_ranks, reducers, job):
    doomed = fresh_ranks()
    call = doomed.begin(2, sees_another_die, reducers(1), job)
    held = call.hear(1)
    call.tell(0, "go on")
    assert call.hear(0) == "in a step"
    doomed.processes[1].log.spare()
    doomed.processes[1].process.kill()
    (error, seconds, freed), _ = call.answers()
    assert error.startswith("WorkerLost: rank 1 (")
    assert seconds < 10
    assert freed >= held


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_digests_are_those_of_the_cpu(dtype):
    for numel in (0, 1, 4095, 70_001, 3 << 20):
        tensor = torch.randint(0, 1 << 14, (numel,)).to(dtype)
        assert digest({"": tensor.cuda()}) == digest({"": tensor})


def test_the_gpu_rounds_as_the_cpu_does(ranks):
    ranks.run(1, casts, (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF))


@pytest.mark.parametrize("name", ["int8", "fp8", "topk", "topk:0.1"])
def test_the_gpu_encodes_as_the_cpu_does(ranks, name):
    ranks.run(1, block_codecs, name)


def test_a_gpu_that_fails_ends_the_job_on_all_ranks(fresh_ranks, reducers, job):
    doomed = fresh_ranks()
    errors = doomed.run(2, one_gpu_fails, reducers(1), job)
    for process in doomed.processes:
        process.log.spare()
    assert all(errors)


def test_children_forked_while_sums_are_in_flight(fresh_ranks, reducers, job):
    fresh_ranks().run(2, forks_under_way, reducers(1), job)


def test_a_graph_is_refused(ranks, reducers, job):
    ranks.run(2, in_a_graph, reducers(1), job)


def test_a_killed_reducer_changes_no_bit(ranks, reducers, serve, job):
    doomed = serve()
    call = ranks.begin(2, under_way_when_a_reducer_dies, [*reducers(1), doomed.address], job, 20)
    assert call.hear(0) == "now"
    doomed.kill()
    call.answers()

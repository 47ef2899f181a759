"""Real engines give the same bits for every arrival order of contributions and every number of reducers."""

import random

import numpy as np
import pytest
import torch
from reduction import layout
from reduction.model import Collective, Configuration, Hello, Join, Member, Push, ReduceOp, Result

from benchmarks.loads.codecs import encoding_of
from reducer.engine import Engine
from worker_plugin.tensors.wire_dtype import parse

RANKS = 6
NUMEL = 5 * 512 + 77
CHUNK_BYTES = 1024


class Sink:
    """Stores results for a rank."""

    def __init__(self, results):
        self.results = results

    def on_frame(self, frame):
        if isinstance(frame, Result):
            assert frame.chunk not in self.results, "one result per chunk"
            self.results[frame.chunk] = bytes(frame.payload)

    def on_closed(self, error):
        raise AssertionError(f"a stream ended: {error}")


def contributions(wire_dtype):
    """Return the collective and each rank's pushes, by chunk."""
    wire = parse(wire_dtype)
    payloads = []
    for rank in range(RANKS):
        generator = torch.Generator().manual_seed(rank)
        which = torch.randint(5, (NUMEL,), generator=generator)
        tensor = torch.tensor([2.0**15, -(2.0**15), 1.0 + 2.0**-7, 3.0, 2.0**-10])[
            which
        ]  # values whose sum depends on the order of addition
        encoding = encoding_of(tensor, wire)
        encoding.open()
        numel = getattr(encoding, "numel", NUMEL)
        pushed = np.empty(encoding.contribution_bytes, np.uint8).data
        chunks = []
        for chunk in range(layout.chunk_count(numel, 2, CHUNK_BYTES)):
            start, stop = layout.chunk_range(chunk, numel, 2, CHUNK_BYTES)
            begin, end = encoding.where(start, stop)
            encoding.encode(start, stop, pushed[begin:end])
            chunks.append(pushed[begin:end])
        payloads.append(chunks)
    return Collective(ReduceOp.SUM, wire.dtype, numel, 7), payloads


def reduced(collective, payloads, k, order):
    """Return each rank's result as bytes, from k reducers that receive the pushes in a random order."""
    results = [{} for _ in range(RANKS)]
    engines = [Engine(memory_limit_bytes=1 << 30, clock=lambda: 100.0) for _ in range(k)]
    members = tuple(Member(f"{index}:1", engine.jobs.incarnation) for index, engine in enumerate(engines))
    streams = {}
    for rank in range(RANKS):
        for index, engine in enumerate(engines):
            stream = streams[rank, index] = engine.open(Sink(results[rank]))
            stream.send(Join("job", bytes(16), rank, RANKS, bytes([rank]) * 16, "host", 0, 1 << 20))
    for stream in streams.values():
        stream.send(Hello(Configuration(bytes(16), 1, CHUNK_BYTES, members), 0))
    runs = layout.deal(len(payloads[0]), (1,) * k, 0)
    waiting = {key: list(runs[key[1]]) for key in streams if runs[key[1]]}
    while waiting:
        rank, index = order.choice(list(waiting))
        chunk = waiting[rank, index].pop(0)
        streams[rank, index].send(Push(1, 0, chunk, collective, 0, payloads[rank][chunk]))
        if not waiting[rank, index]:
            del waiting[rank, index]
    return [b"".join(one[chunk] for chunk in range(len(payloads[0]))) for one in results]


@pytest.mark.parametrize("k", range(1, RANKS + 1))
def test_bfloat16_is_the_rounded_fold_in_rank_order(k):
    collective, payloads = contributions("bf16")
    rows = [torch.frombuffer(bytearray(b"".join(chunks)), dtype=torch.bfloat16) for chunks in payloads]
    total = rows[0].float()
    for row in rows[1:]:
        total += row.float()
    expected = total.bfloat16().view(torch.uint8).numpy().tobytes()
    backwards = rows[-1].float()
    for row in reversed(rows[:-1]):
        backwards += row.float()
    assert not torch.equal(total.bfloat16(), backwards.bfloat16()), "the order of adding shows"
    for seed in range(100):
        assert reduced(collective, payloads, k, random.Random(seed)) == [expected] * RANKS


@pytest.mark.parametrize("wire_dtype", ["fp16", "int8", "fp8", "topk:0.02"])
def test_results_do_not_depend_on_arrival_order(wire_dtype):
    collective, payloads = contributions(wire_dtype)
    expected = reduced(collective, payloads, 1, random.Random(0))[0]
    assert expected
    for k in range(1, RANKS + 1):
        for seed in range(10):
            assert reduced(collective, payloads, k, random.Random(seed)) == [expected] * RANKS

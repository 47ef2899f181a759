from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest
import torch
from reduction.transports.shared import OwnMemory

from benchmarks.lab.procfs import Footprint, footprint, heap_bytes
from benchmarks.lab.ranks import Rank
from benchmarks.method.experiment import table
from benchmarks.soak.flatness import (
    COLUMNS,
    HEAP_ALLOWANCE_BYTES,
    MIB,
    REGIONS_ALLOWANCE,
    RSS_ALLOWANCE_BYTES,
    Series,
    Verdict,
    judge,
)
from benchmarks.soak.load import RandomAllReduces

BASE = Footprint(rss_bytes=300 * MIB, pss_bytes=200 * MIB, threads=9, descriptors=20, heap_bytes=100 * MIB)


def verdict(*footprints: Footprint) -> Verdict:
    series = Series("rank 0")
    for second, sample in enumerate(footprints):
        series.add(float(second), sample)
    return judge(series)


def rising(**last: int) -> Verdict:
    """Judge 21 samples: half as BASE, half with other values."""
    return verdict(*[BASE] * 11, *[replace(BASE, **last)] * 10)


def test_a_constant_process_is_flat() -> None:
    assert rising().grew == ()


def test_warming_up_is_not_growth() -> None:
    cold = replace(BASE, rss_bytes=MIB, heap_bytes=MIB, threads=1, descriptors=3)
    assert verdict(*[cold] * 4, *[BASE] * 17).grew == ()


@pytest.mark.parametrize(
    ("last", "grew"),
    [
        ({"rss_bytes": BASE.rss_bytes + RSS_ALLOWANCE_BYTES}, ()),
        ({"rss_bytes": BASE.rss_bytes + RSS_ALLOWANCE_BYTES + MIB}, ("RSS by 17.0 MiB",)),
        ({"heap_bytes": 100 * MIB + HEAP_ALLOWANCE_BYTES + MIB}, ("heap by 5.0 MiB",)),
        ({"threads": 11}, ()),
        ({"threads": 12}, ("threads by 3",)),
        ({"descriptors": 21}, ("descriptors by 1",)),
        ({"regions": REGIONS_ALLOWANCE}, ()),
        ({"regions": REGIONS_ALLOWANCE + 1}, ("regions by 65",)),
        ({"rss_bytes": MIB, "descriptors": 1}, ()),
    ],
)
def test_growth_beyond_the_allowance_is_named(last: dict[str, int], grew: tuple[str, ...]) -> None:
    assert rising(**last).grew == grew


def test_a_single_high_sample_is_not_growth() -> None:
    peak = replace(BASE, rss_bytes=900 * MIB)
    assert verdict(*[BASE] * 18, peak, BASE, BASE).grew == ()


def test_too_few_samples_are_not_judged() -> None:
    with pytest.raises(ValueError, match="10 are the least"):
        verdict(*[BASE] * 9)


def test_the_table_has_both_medians() -> None:
    unknown = verdict(*[replace(BASE, heap_bytes=None)] * 21)
    assert "heap_bytes" not in unknown.medians
    *_, more, without = table(COLUMNS, [rising(descriptors=22), unknown])
    assert " 20 to 22 | " in more
    assert "| 300.0 +0.00 | 200.0 +0.00 |             |" in without


def test_a_footprint_of_another_process() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"started\n")
        assert process.stdout.readline() == b"started\n"
        found = footprint(process.pid)
        process.stdin.close()
    assert (found.threads, found.descriptors) == (1, 3)
    assert 0 < found.pss_bytes <= found.rss_bytes
    assert found.heap_bytes is None


def test_regions_are_counted_separately() -> None:
    before = footprint(os.getpid())
    memory = OwnMemory()
    memory.want()
    kept = memory.allocate(8 * MIB)
    after = footprint(os.getpid())
    # The region has one descriptor, and Python's mmap another.
    assert (after.descriptors, after.regions - before.regions) == (before.descriptors, 2)
    del kept


def test_the_heap_sees_an_allocation() -> None:
    before = heap_bytes()
    if before is None:
        pytest.skip("no mallinfo2 in this libc")
    kept = torch.ones(8 * MIB, dtype=torch.uint8)
    after = heap_bytes()
    assert after is not None
    assert after - before >= kept.nbytes - MIB


class Alone:
    """A communicator of one rank: the sum is the contribution."""

    def __init__(self, damage: int | None = None) -> None:
        self.left = damage
        self.seen: list[tuple[int, torch.dtype]] = []

    def all_reduce(self, tensor: torch.Tensor, op: object) -> torch.futures.Future[torch.Tensor]:
        self.seen.append((tensor.numel(), tensor.dtype))
        if self.left == len(self.seen) and tensor.numel():
            tensor[-1] += 1
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(tensor)
        return future


def load(state: Alone, seed: int = 1) -> RandomAllReduces:
    made = RandomAllReduces(Rank(0, 1, torch.device("cpu"), {}), ["127.0.0.1:1"], "tcp", seed, MIB // 4)
    made._state = state  # type: ignore[assignment]
    return made


def test_the_load_tries_all_dtypes_and_empty_tensors() -> None:
    state = Alone()
    done = load(state).run(150)
    assert done.collectives == len(state.seen) == 150
    assert done.tensor_bytes == sum(numel * dtype.itemsize for numel, dtype in state.seen)
    assert len({dtype for _, dtype in state.seen}) == 6
    assert 0 in [numel for numel, _ in state.seen]


def test_all_ranks_follow_one_plan() -> None:
    first, second = Alone(), Alone()
    load(first).run(50)
    again = load(second)
    again.run(20)
    again.run(30)
    assert first.seen == second.seen


def test_a_wrong_element_is_found() -> None:
    with pytest.raises(AssertionError, match=r"rank 0, collective 9 has 1 wrong elements of"):
        load(Alone(damage=10)).run(50)

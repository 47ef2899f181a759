"""A process that runs out of a resource: sums continue without it, or an error names it, and no one else is blamed.

Where memory cannot be shared, payloads are sent. Where there is no memory at all, the job ends with
ResourceExhausted on all ranks, and the next job of the same processes works normally. Nothing here uses
/dev/shm or locks memory, so a full tmpfs and RLIMIT_MEMLOCK are irrelevant. RLIMIT_NPROC does not bind root,
so threads that cannot be started are simulated.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from reduction.client.tcp_client import TcpStream
from reduction.errors import ResourceExhausted
from support.processes.ranks import Ranks
from support.processes.shortages import forbid_memory_files, limit, limited, mapped_bytes, no_descriptors

#: Elements of a collective with its own region.
NUMEL = 300_000
#: Elements of a collective that exceeds all the memory left to a process.
LARGE = 16 << 20
#: Bytes of memory left to a reducer.
LEFT_BYTES = 16 << 20


# ---- in the ranks ----


def planes_of(state):
    return state._communicator._driver.links.planes


def issue_and_check(rank, state, count):
    """Check sums of several sizes that are in flight together."""
    inputs = [rank.values(rank.number, (NUMEL + step,), step=step) for step in range(count)]
    futures = [state.all_reduce(tensor) for tensor in inputs]
    for step, (future, tensor) in enumerate(zip(futures, inputs, strict=True)):
        rank.wait(future)
        assert torch.equal(tensor, rank.expected((NUMEL + step,), step=step)), step


def sums(rank, reducers, job, with_io_process=(), count=3):
    """Return the planes that the sums used, or nothing if they used an I/O process."""
    io_process = rank.number in with_io_process
    with rank.state(reducers, job, io_process=io_process) as state:
        issue_and_check(rank, state, count)
        return None if io_process else planes_of(state)


def sums_without_descriptors(rank, reducers, job, spare):
    with rank.state(reducers, job) as state:
        rank.round(state)
        with no_descriptors(spare):
            rank.round(state, 10 * NUMEL, 1)
        rank.round(state, NUMEL, 2)
        return planes_of(state)


def sums_with_48_descriptors(rank, reducers, job):
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    for with_io_process in ((), (0,)):
        sums(rank, reducers, f"{job}-{with_io_process}", with_io_process, 40)


def sums_with_small_files(rank, reducers, job):
    with limited(resource.RLIMIT_FSIZE, 1 << 20):
        sums(rank, reducers, job)


def sums_without_memory_files(rank, reducers, job):
    forbid_memory_files()
    for with_io_process in ((), (0,)):
        sums(rank, reducers, f"{job}-{with_io_process}", with_io_process)


def sums_of_a_short_io_process(rank, reducers, job):
    """Sum while, from the second sum on, the I/O process cannot accept what the rank shares."""
    with rank.state(reducers, job, io_process=not rank.number) as state:
        rank.round(state)
        if not rank.number:
            pid = state._communicator._driver.pid
            limit(pid, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{pid}/fd")) + 1)
        issue_and_check(rank, state, 5)


def error_without_memory(rank, reducers, job, io_process):
    """Return the error when only rank 0 has too little memory."""
    tensor = torch.ones(LARGE)
    with rank.state(reducers, job, io_process=io_process and not rank.number) as state:
        rank.round(state)
        left = contextlib.nullcontext()
        if not rank.number:
            left = limited(resource.RLIMIT_AS, mapped_bytes() + tensor.nbytes // 2)
        with left:
            return rank.error_of(lambda: rank.wait(state.all_reduce(tensor)))


def error_of_results_without_memory(rank, reducers, job):
    """Rank 0 has no memory for received results; rank 1 may have received the first sum."""

    def refuse(*_):
        raise MemoryError

    with rank.state(reducers, job) as state:
        rank.round(state)
        kept = TcpStream._memory_for_result
        if not rank.number:
            TcpStream._memory_for_result = refuse
        try:
            return rank.error_of(lambda: [rank.round(state, NUMEL, step) for step in range(2)])
        finally:
            TcpStream._memory_for_result = kept


def sums_at_a_short_reducer(rank, reducers, job, numel, count):
    """Sum while the test takes resources from the reducer between the sums."""
    with rank.state(reducers, job) as state:
        rank.round(state)
        rank.tell("begun")
        rank.hear()
        for step in range(count):
            rank.round(state, numel + step, step)
        return planes_of(state)


def errors_without_threads(rank, reducers, job, name):
    """Return the errors when one kind of thread cannot be started."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse
    try:
        with rank.state(reducers, job) as state:
            first = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
            return first, rank.error_of(lambda: state.all_reduce(torch.ones(3)))
    finally:
        threading.Thread.start = start


def maps_and_status(rank, reducers, job):
    with rank.state(reducers, job) as state:
        rank.round(state, NUMEL)
        return [Path(f"/proc/self/{name}").read_text() for name in ("maps", "status")]


# ---- tests ----


@pytest.fixture(scope="module")
def poor_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Yield ranks used only by this module, which never recover the resources they lost."""
    made = Ranks(tmp_path_factory.mktemp("poor"))
    yield made
    made.stop()


def assert_short(error, remedy, who=""):
    assert type(error) is ResourceExhausted
    assert remedy in str(error)
    assert who in str(error)


@pytest.mark.parametrize("io_process", [False, True])
def test_a_worker_without_memory_ends_its_job_and_not_the_next_one(poor_ranks, reducers, job, io_process):
    """This test is first: after many sums a process may have free memory in its heap, which no limit takes back."""
    own, other = poor_ranks.run(2, error_without_memory, reducers(1), job, io_process, group=False)
    assert_short(own, "ulimit -v")
    assert_short(other, "ulimit -v", "rank 0")
    poor_ranks.run(2, sums, reducers(1), job, group=False)
    poor_ranks.check()


@pytest.mark.parametrize("spare", [1, 4])
def test_a_worker_without_descriptors_continues_over_other_connections(ranks, reducers, job, spare):
    for planes in ranks.run(2, sums_without_descriptors, reducers(2), job, spare, group=False):
        assert planes != ["shared memory"]


def test_workers_with_48_descriptors(poor_ranks, reducers, job):
    poor_ranks.run(2, sums_with_48_descriptors, reducers(1), job, group=False)
    poor_ranks.check()


def test_workers_that_cannot_create_memory_files(poor_ranks, reducers, job):
    poor_ranks.run(2, sums_without_memory_files, reducers(1), job, group=False)
    poor_ranks.check()


def test_workers_that_cannot_write_large_files(ranks, reducers, job):
    """The limit also applies to memory files. Python ignores SIGXFSZ, which accompanies the error."""
    ranks.run(2, sums_with_small_files, reducers(1), job, group=False)


def test_more_collectives_in_flight_than_a_process_has_regions(ranks, reducers, job):
    """An I/O process takes two regions for each."""
    ranks.run(2, sums, reducers(1), job, (0,), 140, group=False)


def test_an_io_process_that_cannot_map_what_its_rank_shares(ranks, reducers, job):
    ranks.run(2, sums_of_a_short_io_process, reducers(1), job, group=False)


def test_a_worker_without_memory_for_results_ends_its_job(ranks, reducers, job):
    own, other = ranks.run(2, error_of_results_without_memory, reducers(1), job, group=False)
    assert_short(own, "ulimit -v")
    assert_short(other, "ulimit -v", "rank 0")


@pytest.mark.parametrize("name", ["reduction-staging", "reduction-discovery"])
def test_a_worker_without_threads_names_the_limit(ranks, reducers, job, name):
    (errors,) = ranks.run(1, errors_without_threads, reducers(1), job, name, group=False)
    for error in errors:
        assert_short(error, "ulimit -u")
    ranks.run(1, sums, reducers(1), job, group=False)


@pytest.mark.parametrize("what", [resource.RLIMIT_NOFILE, resource.RLIMIT_AS])
def test_a_reducer_that_cannot_map_what_workers_share(ranks, serve, job, what):
    """It has descriptors or memory for chunks, but not for a region of 64 MiB or a few of 1 MiB."""
    reducer = serve()
    sizes = (LARGE, 1) if what == resource.RLIMIT_AS else (NUMEL, 4)
    call = ranks.begin(2, sums_at_a_short_reducer, [reducer.address], job, *sizes, group=False)
    assert [call.hear(index) for index in range(2)] == ["begun"] * 2
    if what == resource.RLIMIT_AS:
        limit(reducer.pid, what, mapped_bytes(reducer.pid) + LEFT_BYTES)
    else:
        limit(reducer.pid, what, len(os.listdir(f"/proc/{reducer.pid}/fd")) + 1)
    for index in range(2):
        call.tell(index, "go on")
    assert ["tcp"] in call.answers()  # a rank that ends its stream may leave enough for the other
    assert "cannot be mapped" in reducer.log.text or "could not be received" in reducer.log.text
    assert ranks.run(2, sums, [reducer.address], job, group=False) == [["tcp"]] * 2


def test_a_reducer_that_cannot_create_memory_files(ranks, serve, job):
    reducer = serve(before=forbid_memory_files)
    assert ranks.run(2, sums, [reducer.address], job, group=False) == [["shared memory"]] * 2


def test_a_reducer_that_cannot_write_large_files(ranks, serve, job):
    reducer = serve()
    limit(reducer.pid, resource.RLIMIT_FSIZE, 1 << 20)
    assert ranks.run(2, sums, [reducer.address], job, group=False) == [["shared memory"]] * 2


def test_memory_is_neither_in_a_file_system_nor_locked(ranks, reducers, job):
    for maps, status in ranks.run(2, maps_and_status, reducers(1), job, group=False):
        assert "/memfd:reduction" in maps
        assert "/dev/shm" not in maps
        assert "VmLck:\t       0 kB" in status

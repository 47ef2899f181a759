"""`io_process`: ranks whose connections are in a separate process, together with ranks without one."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import time
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
from reduction.errors import ClosedError, ConfigError, WorkerFailed, WorkerLost
from reduction.model import DType, ReduceOp
from reduction.process.launch import io_process_command
from support.expected.lossy import AVG, assert_same, fold
from support.processes.children import START_S
from support.processes.ranks import Died
from torch.utils.data import DataLoader, TensorDataset

import worker_plugin
from worker_plugin import ReductionState
from worker_plugin.communicator import Request
from worker_plugin.tensors.encoding import ParameterSlice

SIZES = (0, 1, 257, 513, 300_001)
#: Time limit for a process to end on its own, in seconds.
WAIT_S = 10.0


# ---- in the ranks ----


def is_gone(pid):
    """Return whether a process ends within WAIT_S; a zombie counts as ended."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def pid_of(state):
    return state._communicator._driver.pid


def same_bits(rank, reducers, job, wire):
    """Sum with ranks of both kinds; rank 0 logs, so it is one that has the process."""
    lines = rank.lines("worker_plugin")
    has_process = rank.number % 2 == 0
    with rank.state(reducers, job, wire_dtype=wire, io_process=has_process) as state:
        for step, size in enumerate(SIZES):
            rows = [rank.values(other, (size,), step=step) for other in range(rank.world_size)]
            tensor = rows[rank.number].clone()
            result = rank.wait(state.all_reduce(tensor, AVG))
            assert result.data_ptr() == tensor.data_ptr()
            expected = rank.fold(rows, AVG) if wire is None else fold(rows, wire, AVG)
            assert_same(tensor, expected, (wire, size))
        futures = []
        for step in range(20):  # many at the same time, of another dtype
            rows = [rank.values(other, (1000,), torch.int64, step) for other in range(rank.world_size)]
            futures.append((state.all_reduce(rows[rank.number].clone()), sum(rows)))
        for future, expected in futures:
            assert torch.equal(rank.wait(future), expected)
        spans = state._communicator.recorder.record().spans
        assert len(spans) == len(SIZES) + 20
        assert all(span.lanes and span.whole and span.done and not span.unpushed for span in spans[1:])
        pid = pid_of(state) if has_process else None
    assert state.error is None
    assert pid is None or is_gone(pid)
    assert any("all ranks (3) have joined" in text for text in lines) or rank.number


def killed_io_process(rank, reducers, job, victim):
    with rank.state(reducers, job, io_process=True) as state:
        for step in range(3):
            rank.round(state, 10_000, step)
        if rank.number == victim:
            rank.tell(pid_of(state))
            deadline = time.monotonic() + WAIT_S
            while state.error is None and time.monotonic() < deadline:
                time.sleep(0.01)
            error = state.error
        else:
            future = state.all_reduce(torch.ones(10_000))
            rank.tell("waiting")
            error = rank.error_of(lambda: rank.wait(future))
        assert state.error is error
        assert type(rank.error_of(lambda: state.all_reduce(torch.ones(3)))) is type(error)
        return error


def killed_rank(rank, reducers, job, victim):
    """Fork children on the victim, which read batches while sums continue."""
    with rank.state(reducers, job, io_process=True) as state:
        rank.round(state, 10_000, 0)
        children = []
        if rank.number == victim:
            data = TensorDataset(torch.arange(100_000.0))
            batches = iter(DataLoader(data, batch_size=10, num_workers=2, multiprocessing_context="fork"))
            next(batches)
            children = [child.pid for child in multiprocessing.active_children()]
        for step in range(1, 4):
            rank.round(state, 10_000, step)
        future = None if rank.number == victim else state.all_reduce(torch.ones(10_000))
        rank.tell((pid_of(state), children))
        if future is None:
            rank.hear()
        return rank.error_of(lambda: rank.wait(future))


def aborted(rank, reducers, job):
    with rank.state(reducers, job, io_process=True) as state:
        rank.round(state, 1000, 0)
        pid = pid_of(state)
        if rank.number:
            error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(1000))))
        else:
            state.abort()
            error = rank.error_of(lambda: state.all_reduce(torch.ones(1000)))
    return error, is_gone(pid)


def dropped_and_refused(rank, reducers, job):
    """Drop a state, which leaves in the background and whose memory is freed without the garbage collector."""
    where = {"rank": rank.number, "world_size": rank.world_size}
    state = ReductionState(reducers, job=job, io_process=True, **where)  # the only reference
    rank.round(state, 1000, 0)
    pid = pid_of(state)
    elsewhere = torch.empty(3, device="meta")
    request = Request(elsewhere, DType.FLOAT32, ReduceOp.SUM, 1, [ParameterSlice(0, 3)])
    refusal = rank.error_of(partial(state._communicator.submit, request))
    refusal.__traceback__ = None  # its frames would keep the communicator
    rank.round(state, 1000, 1)
    gc.collect()
    gc.disable()
    try:
        known = weakref.ref(state._communicator)
        del state
        assert is_gone(pid)
        deadline = time.monotonic() + WAIT_S
        while known() is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        return refusal, known() is None
    finally:
        gc.enable()


# ---- tests ----


@pytest.mark.parametrize("wire", [None, "bf16", "topk:0.1"])
def test_the_bits_match_those_of_ranks_without_the_process(ranks, reducers, job, wire):
    ranks.run(3, same_bits, reducers(2), job, wire, group=False)


def test_a_killed_io_process_is_an_error_on_all_ranks(ranks, reducers, job):
    call = ranks.begin(3, killed_io_process, reducers(2), job, 1, group=False)
    pid = call.hear(1)
    assert call.hear(0) == call.hear(2) == "waiting"
    os.kill(pid, signal.SIGKILL)
    first, own, last = call.answers()
    assert type(own) is WorkerFailed
    assert f"I/O process of rank 1 (pid {pid}) was ended by signal 9 (SIGKILL)" in str(own)
    for error in (first, last):
        assert type(error) is WorkerLost
        assert "rank 1" in str(error)


def test_a_killed_rank_takes_its_io_process_down_whatever_it_has_forked(fresh_ranks, reducers, job):
    doomed = fresh_ranks()
    call = doomed.begin(2, killed_rank, reducers(1), job, 1, group=False)
    pid, children = call.hear(1)
    try:
        assert len(children) == 2
        call.hear(0)
        doomed.processes[1].log.spare()  # its DataLoader's children lose their parent
        os.kill(doomed.processes[1].process.pid, signal.SIGKILL)
        error, died = call.answers()
        assert isinstance(died, Died)
        assert type(error) is WorkerLost
        assert is_gone(pid)
    finally:
        for child in children:  # they check for their parent only every 5 s
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_an_abort_reaches_all_ranks(ranks, reducers, job):
    (own, own_gone), (other, other_gone) = ranks.run(2, aborted, reducers(1), job, group=False)
    assert type(own) is ClosedError
    assert type(other) is WorkerFailed
    assert "rank 0" in str(other)
    assert own_gone
    assert other_gone


def test_a_dropped_state_leaves_nothing_behind_and_other_devices_are_refused(ranks, reducers, job):
    for refusal, is_free in ranks.run(2, dropped_and_refused, reducers(1), job, group=False):
        assert type(refusal) is ConfigError
        assert "io_process is for tensors on the CPU, and this one is on meta" in str(refusal)
        assert is_free


def test_it_imports_no_user_modules_and_ends_with_its_channel(tmp_path, monkeypatch):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        for name in ("grpc", "numpy", "torch", "uvloop", "worker_plugin"):
            (tmp_path / folder / f"{name}.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'here'}{os.pathsep}{tmp_path / 'there'}")
    command, environment = io_process_command(Path(worker_plugin.__file__).parents[1])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment)
    with process:
        try:
            with ours:
                ours.settimeout(START_S)
                ours.send(json.dumps(["event", "Broke", ["WorkerFailed", "a cause"]]).encode())
                assert json.loads(ours.recv(1000)) == ["failed", ["WorkerFailed", "a cause"]]
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()

"""Bad input of any kind is a typed error that names the value, and the reducers still serve a healthy job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import closing

import grpc
import pytest
import torch
import torch.distributed as dist
from reduction import limits
from reduction.errors import (
    ClosedError,
    CollectiveMismatch,
    ConfigError,
    MalformedFrame,
    OutOfOrder,
    PeerLeft,
    ReducerUnavailable,
    ResourceExhausted,
    UnsupportedVersion,
)
from reduction.model import (
    Ack,
    Collective,
    Configuration,
    DType,
    Hello,
    Member,
    Push,
    ReduceOp,
    Start,
    Welcome,
)
from reduction.v1 import reduction_pb2 as pb
from support.network.raw import ID, RawStream, join
from support.processes.warm import warm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import ReductionState, reduction_hook

KIB = 1024
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


# ---- the healthy job ----


def go_on(rank, reducers):
    """Run another collective on a state that lives as long as this module's tests."""
    state = rank.kept.get("healthy")
    if state is None:
        state = rank.kept["healthy"] = ReductionState(
            reducers, job="healthy", rank=rank.number, world_size=rank.world_size
        )
    rank.round(state, 50_000)


def leave(rank):
    """Close the state, which would otherwise stay in a process that later tests use too."""
    state = rank.kept.pop("healthy", None)
    if state is not None:
        state.close()


@pytest.fixture(scope="module")
def _closed_at_the_end(_shared_ranks):
    yield
    _shared_ranks.run(2, leave, first=2, group=False)


@pytest.fixture
def healthy(ranks, reducers, _closed_at_the_end):
    """Run a job of two ranks on both reducers before and after the test."""
    ranks.run(2, go_on, reducers(2), first=2, group=False)
    yield
    ranks.run(2, go_on, reducers(2), first=2, group=False)


# ---- frames that no worker sends ----


def raw_push(chunk: int = 0, numel: int = 4, nbytes: int = 16, epoch: int = 1, **changes: int) -> bytes:
    collective = pb.Collective(**{"op": 1, "dtype": 1, "numel": numel, "fingerprint": 7} | changes)
    push = pb.Push(epoch=epoch, seq=0, chunk=chunk, collective=collective, payload=bytes(nbytes))
    return pb.WorkerFrame(push=push).SerializeToString()


FIRST_FRAMES = {
    "garbage": (b"\xff\xfe garbage", MalformedFrame, "10 bytes"),
    "empty": (b"", MalformedFrame, "0 bytes"),
    "unknown body": (b"\xfa\x01\x00", MalformedFrame, "3 bytes"),
    "version": (join("x", protocol=99), UnsupportedVersion, "version 99"),
    "rank too high": (
        join("x", rank=5, world_size=3),
        MalformedFrame,
        "rank is 5; it must be below the world size 3",
    ),
    "world size 0": (join("x", world_size=0), MalformedFrame, "world_size is 0"),
    "world size too large": (join("x", world_size=5000), MalformedFrame, "world_size is 5000"),
    "no job name": (join(""), MalformedFrame, "Join.job is 0"),
    "long job name": (join("x" * 201), MalformedFrame, "Join.job is 201"),
    "short nonce": (join("x", nonce=b"abc"), MalformedFrame, "nonce has 3 bytes"),
    "no instance": (join("x", instance=b""), MalformedFrame, "instance has 0 bytes"),
    "no credit": (join("x", credit_bytes=0), MalformedFrame, "credit_bytes is 0"),
    "too much credit": (join("x", credit_bytes=1 << 40), MalformedFrame, f"credit_bytes is {1 << 40}"),
    "no Join": (Ack(3), OutOfOrder, "not a Ack"),
}


@pytest.mark.parametrize("name", FIRST_FRAMES)
def test_bad_first_frame(healthy, reducers, name):
    frame, kind, text = FIRST_FRAMES[name]
    with closing(RawStream(reducers(1)[0])) as stream:
        stream.send(frame)
        error, code, details = stream.error()
    assert type(error) is kind
    assert text in str(error)
    assert details == str(error)
    assert code not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)


LATER_FRAMES = {
    "a second Join": (join("x"), OutOfOrder, "second Join"),
    "garbage": (b"\xff\xfe", MalformedFrame, "2 bytes"),
    "another epoch": (raw_push(epoch=2), OutOfOrder, "epoch 2"),
    "a chunk that is not there": (raw_push(chunk=1), MalformedFrame, "chunk 1"),
    "another size": (raw_push(nbytes=12), MalformedFrame, "12 bytes"),
    "no dtype": (raw_push(dtype=0), MalformedFrame, "dtype is 0"),
    "a dtype of the future": (raw_push(dtype=77), MalformedFrame, "dtype is 77"),
    "an op of the future": (raw_push(op=55), MalformedFrame, "op is 55"),
    "too many elements": (raw_push(numel=1 << 60), MalformedFrame, f"numel is {1 << 60}"),
    "a chunk over the limit": (
        raw_push(nbytes=limits.CHUNK_BYTES_MAX + 8),
        MalformedFrame,
        f"payload is {limits.CHUNK_BYTES_MAX + 8}",
    ),
    "more than its credit": (None, OutOfOrder, f"its credit is {4 * KIB}"),
}


@pytest.mark.parametrize("name", LATER_FRAMES)
def test_bad_frame_in_a_running_job(healthy, reducers, job, name):
    """The peer joins as one of two ranks, so that its pushes wait, and then breaks a rule."""
    frame, kind, text = LATER_FRAMES[name]
    address = reducers(1)[0]
    with closing(RawStream(address)) as stream, closing(RawStream(address)) as other:
        stream.send(join(job, world_size=2, credit_bytes=4 * KIB))
        welcome = stream.read_until(Welcome)
        other.send(join(job, world_size=2, rank=1, credit_bytes=4 * KIB))
        other.read_until(Welcome)
        configuration = Configuration(ID, 1, 4 * KIB, (Member(address, welcome.incarnation),))
        stream.send(Hello(configuration, 0))
        other.send(Hello(configuration, 0))
        stream.read_until(Start)
        if frame is None:
            collective = Collective(ReduceOp.SUM, DType.FLOAT32, 2 * KIB, 7)
            stream.send(*(Push(1, 0, chunk, collective, 0, memoryview(bytes(4 * KIB))) for chunk in range(2)))
        else:
            stream.send(frame)
        error, _, details = stream.error()
    assert type(error) is kind
    assert text in str(error)
    assert details == str(error)


def test_a_message_that_is_larger_than_any_frame(healthy, reducers):
    with closing(RawStream(reducers(1)[0])) as stream:
        stream.send(bytes(limits.FRAME_BYTES_MAX + 1))
        _, code, details = stream.error()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(limits.FRAME_BYTES_MAX) in details


# ---- ranks that disagree ----


def disagree(rank, reducers, job, good, shapes, dtypes, ops):
    """Issue a different collective on each rank after `good` correct ones."""
    with rank.state(reducers, job, join_timeout_s=20) as state:
        for step in range(good):
            rank.round(state, step=step)
        tensor = torch.ones(shapes[rank.number], dtype=dtypes[rank.number])
        # This rank may already know that the others disagree, in which case all_reduce itself raises.
        error = rank.error_of(lambda: rank.wait(state.all_reduce(tensor, ops[rank.number])))
        assert state.error is error
        again = rank.error_of(lambda: state.all_reduce(torch.ones(3)))
        assert again is error, "later collectives raise the same error at once"
        return error


F32, F64, I32 = torch.float32, torch.float64, torch.int32
DISAGREEMENTS = {
    "numel": ([(4,), (5,)], [F32, F32], [SUM, SUM], ["4 x", "5 x"]),
    "numel 0 against 3": ([(0,), (3,)], [F32, F32], [SUM, SUM], ["0 x", "3 x"]),
    "numel 3 against 0": ([(3,), (0,)], [F32, F32], [SUM, SUM], ["0 x", "3 x"]),
    "small against large": ([(3,), (1_000_000,)], [F32, F32], [SUM, SUM], ["3 x", "1000000 x"]),
    "shape": ([(2, 3), (3, 2)], [F32, F32], [SUM, SUM], ["layout"]),
    "dtype": ([(4,), (4,)], [F32, F64], [SUM, SUM], ["float32", "float64"]),
    "dtype of the same size": ([(4,), (4,)], [F32, I32], [SUM, SUM], ["float32", "int32"]),
    "op": ([(4,), (4,)], [F32, F32], [SUM, AVG], ["SUM", "AVG"]),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
@pytest.mark.parametrize("good", [0, 3])
def test_ranks_disagree(healthy, ranks, reducers, job, name, good):
    shapes, dtypes, ops, texts = DISAGREEMENTS[name]
    errors = ranks.run(2, disagree, reducers(2), job, good, shapes, dtypes, ops, group=False)
    for error in errors:
        assert type(error) is CollectiveMismatch
        for text in [*texts, f"collective {good}", "rank 0", "rank 1"]:
            assert text in str(error), f"{text!r} is not in {error}"


def test_one_of_three_disagrees(ranks, reducers, job):
    """All three ranks get the error, including the two that agree."""
    arguments = [(0,), (0,), (3,)], [F32] * 3, [SUM] * 3
    errors = ranks.run(3, disagree, reducers(3), job, 1, *arguments, group=False)
    assert [type(error) for error in errors] == [CollectiveMismatch] * 3
    assert all("rank 2" in str(error) for error in errors)


def other_world_size(rank, reducers, job):
    with rank.state(reducers, job, world_size=2 + rank.number, join_timeout_s=20) as state:
        return rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))


def test_world_sizes_differ(healthy, ranks, reducers, job):
    errors = ranks.run(2, other_world_size, reducers(2), job, group=False)
    for error in errors:
        assert type(error) is CollectiveMismatch
        assert "world size" in str(error)
        assert "2" in str(error)
        assert "3" in str(error)


class TwoParts(nn.Module):
    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(first))
        self.second = nn.Parameter(torch.ones(second))

    def forward(self) -> torch.Tensor:
        return self.first.sum() + self.second.sum()


def other_layout(rank, reducers, job):
    """Give each rank's DDP different parameters; without init_sync DDP does not check them itself."""
    model = TwoParts(4 + 2 * rank.number, 6 - 2 * rank.number)
    ddp = DistributedDataParallel(model, init_sync=False)
    with rank.state(reducers, job) as state:
        ddp.register_comm_hook(state, reduction_hook)
        error = rank.error_of(lambda: ddp().backward())
        return error, state.error


def test_bucket_layouts_differ(healthy, ranks, reducers, job):
    for raised, error in ranks.run(2, other_layout, reducers(2), job):
        assert type(error) is CollectiveMismatch, raised
        assert "layout" in str(error)
        assert type(raised) is RuntimeError
        assert str(error) in str(raised)


def other_count(rank, reducers, job):
    with rank.state(reducers, job) as state:
        rank.round(state)
        if rank.number == 1:
            return rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
        return None


def test_one_rank_issues_more(healthy, ranks, reducers, job):
    _, error = ranks.run(2, other_count, reducers(2), job, group=False)
    assert type(error) is PeerLeft
    assert "rank 0" in str(error)
    assert "collective 1" in str(error)


# ---- arguments ----


def bad_arguments(rank, reducers, job):
    """Pass bad arguments on rank 1 only. They raise at the call, and the collective gets no number."""
    calls = [
        (torch.eye(3).to_sparse(), SUM),
        (torch.ones(4, 4).t()[:, :2], SUM),
        (torch.ones(4, 4)[:, ::2], SUM),
        (torch.ones(3, dtype=torch.int8), AVG),
        (torch.ones(3, dtype=torch.complex64), SUM),
        (torch.ones(3, dtype=torch.bool), AVG),
        (torch.ones(3, dtype=torch.int32), AVG),
        (torch.ones(3, dtype=torch.int64), AVG),
        (torch.ones(3), dist.ReduceOp.BAND),
        (torch.ones(3, device="meta"), SUM),
        (torch._neg_view(torch.ones(3)), SUM),
    ]
    with rank.state(reducers, job) as state:
        rank.round(state)
        errors = []
        if rank.number == 1:
            errors = [rank.error_of(lambda c=call: state.all_reduce(*c)) for call in calls]
        rank.round(state)
        assert state.error is None
        return errors


def test_bad_arguments_raise_at_the_call(ranks, reducers, job):
    texts = [
        "sparse",
        "contiguous",
        "contiguous",
        "int8",
        "complex64",
        "bool",
        "int32",
        "int64",
        "BAND",
        "meta",
        "resolve_neg",
    ]
    _, errors = ranks.run(2, bad_arguments, reducers(2), job, group=False)
    for text, error in zip(texts, errors, strict=True):
        assert type(error) is ConfigError, text
        assert text in str(error)


SETTINGS = {
    "empty list": ({"reducers": []}, "names no reducer: give at least one HOST:PORT, or leave it out"),
    "empty string": ({"reducers": ""}, "names no reducer: give at least one HOST:PORT, or leave it out"),
    "only commas": ({"reducers": " , "}, "names no reducer: give at least one HOST:PORT, or leave it out"),
    "no port": ({"reducers": ["127.0.0.1"]}, "'127.0.0.1'"),
    "port 0": ({"reducers": ["127.0.0.1:0"]}, "127.0.0.1:0"),
    "an address twice": ({"reducers": ["127.0.0.1:5", "127.0.0.1:5"]}, "twice"),
    "large chunks": ({"chunk_bytes": 8 << 20, "credit_bytes": 16 << 20}, f"chunk_bytes is {8 << 20}"),
    "odd chunks": ({"chunk_bytes": 1500}, "chunk_bytes is 1500"),
    "little credit": ({"chunk_bytes": 4096, "credit_bytes": 1024}, "credit_bytes is 1024"),
    "rank": ({"rank": 2, "world_size": 2}, "rank is 2"),
    "world size": ({"world_size": 0}, "world_size is 0"),
    "job name": ({"job": "x" * 201}, "200"),
    "transport": ({"transport": "pigeon"}, "'pigeon'"),
    "timeout": ({"timeout_s": -1.0}, "timeout_s is -1"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings(name):
    settings, text = SETTINGS[name]
    with pytest.raises(ConfigError) as caught:
        ReductionState(**{"reducers": ["127.0.0.1:5"]} | settings)
    assert text in str(caught.value)


def test_bad_environment(monkeypatch):
    monkeypatch.setenv("REDUCTION_CHUNK_BYTES", "many")
    with pytest.raises(ConfigError, match=r"REDUCTION_CHUNK_BYTES.*'many'"):
        ReductionState(["127.0.0.1:5"])


def test_without_a_rank_or_world_size():
    with ReductionState(["127.0.0.1:5"]) as state, pytest.raises(ConfigError, match="world_size is None"):
        state.all_reduce(torch.ones(3))


def test_collective_after_close():
    state = ReductionState(["127.0.0.1:5"], job="x", rank=0, world_size=1)
    state.close()
    with pytest.raises(ClosedError):
        state.all_reduce(torch.ones(3))


# ---- absent reducers ----


def unreachable(rank, reducers, job, policy):
    started = time.monotonic()
    with rank.state(reducers, job, join_timeout_s=2, on_reducer_loss=policy) as state:
        error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
        took = time.monotonic() - started
    return error, took, time.monotonic() - started - took


@pytest.mark.parametrize(("reachable", "policy"), [(0, "reshard"), (1, "wait"), (1, "raise")])
def test_unreachable_reducers(ranks, reducers, free_port, job, reachable, policy):
    absent = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    for error, took, closing_took in ranks.run(
        2, unreachable, reducers(reachable) + absent, job, policy, group=False
    ):
        assert type(error) is ReducerUnavailable
        assert all(str(error).count(address) == 1 for address in absent), error
        what = f"2 of {reachable + 2} reducers could not be reached within 2 s (join_timeout_s): "
        assert what in str(error), "behind the name of the rank that told it, if another one did"
        assert "(connection refused)" in str(error)
        assert 1.9 < took < 15
        assert closing_took < 5


def test_memory_limit_refuses_a_job_and_keeps_the_other(serve, ranks, job):
    reducer = serve("--memory-limit", str(20 << 20))
    answers = ranks.run(4, two_jobs_too_many, [reducer.address], job)
    assert answers[:2] == [None, None]
    for error in answers[2:]:
        assert type(error) is ResourceExhausted
        assert str(20 << 20) in str(error)


def two_jobs_too_many(rank, reducers, job):
    which, number = divmod(rank.number, 2)
    settings = {"rank": number, "world_size": 2, "join_timeout_s": 20}
    with rank.state(reducers, f"{job}-{which}", **settings) as state:
        if which == 0:
            rank.round(state)
        dist.barrier()
        error = rank.error_of(lambda: rank.round(state)) if which else None
        dist.barrier()
        if which == 0:
            rank.round(state)
    if which:  # the job fits with less credit
        with rank.state(
            reducers, f"{job}-{which}", **settings, chunk_bytes=4096, credit_bytes=65536
        ) as state:
            rank.round(state)
    dist.barrier()
    return error


# ---- DDP after a failure ----


def fail_in_backward(rank, reducers, job):
    """Issue an extra collective on rank 1. The same DDP object must keep raising, and a new one must work."""
    torch.manual_seed(3)
    model = nn.Linear(4, 2)
    ddp = DistributedDataParallel(model)
    state = rank.state(reducers, job)
    ddp.register_comm_hook(state, reduction_hook)
    x = torch.ones(3, 4) * (1 + rank.number)
    ddp(x).sum().backward()
    if rank.number == 1:
        state.all_reduce(torch.ones(3))
    errors = []
    for _ in range(3):
        ddp.zero_grad()
        errors.append(rank.error_of(lambda: ddp(x).sum().backward()))
    typed = state.error
    state.close()
    dist.barrier()

    again = DistributedDataParallel(model)
    with rank.state(reducers, job) as fresh:  # the same name also works: the failed life is over
        again.register_comm_hook(fresh, reduction_hook)
        again.zero_grad()
        again(x).sum().backward()
        assert torch.equal(model.weight.grad, torch.full((2, 4), 4.5))
    return errors, typed


def test_ddp_after_a_failure(healthy, ranks, reducers, job):
    for errors, typed in ranks.run(2, fail_in_backward, reducers(2), job):
        assert type(typed) is CollectiveMismatch
        for error in errors:
            assert type(error) is RuntimeError
            assert "CollectiveMismatch" in str(error)
            assert str(typed) in str(error)
            assert "INTERNAL ASSERT" not in str(error)


# ---- the command line ----


def reducer_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [warm("reducer"), "-m", "reducer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_port_in_use(serve):
    reducer = serve()
    ended = reducer_command("serve", "--bind", reducer.address)
    assert ended.returncode == 3
    assert ended.stdout == ""
    wanted = f"reducer: --bind {reducer.address}: cannot listen on {reducer.address}: Address already in use"
    assert ended.stderr.splitlines()[-1] == wanted
    assert "Traceback" not in ended.stderr
    assert "add_port" not in ended.stderr, "noise of gRPC's"


def test_metrics_port_in_use(serve, free_port):
    port = free_port()
    serve("--metrics-port", str(port))
    ended = reducer_command("serve", "--bind", "127.0.0.1:0", "--metrics-port", str(port))
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert f"--metrics-port {port}: cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_data_port_in_use(serve, free_port):
    port = free_port()
    serve("--data-port", str(port))
    ended = reducer_command("serve", "--bind", "0", "--data-port", str(port))
    assert (ended.returncode, ended.stdout) == (3, "")
    assert f"--data-port {port}: cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr


def test_a_port_of_another_process_is_in_use(serve, free_port):
    port = free_port()
    serve("--data-port", str(port))
    arguments = ("--bind", "0", "--processes", "2", "--data-port", str(port - 1))
    ended = reducer_command("serve", *arguments)
    assert (ended.returncode, ended.stdout) == (3, "")
    wanted = (
        f"--data-port {port - 1}, of which process 1 serves {port - 1} + 1: cannot listen on 127.0.0.1:{port}"
    )
    assert f"{wanted}: Address already in use" in ended.stderr


def test_a_host_that_does_not_resolve():
    ended = reducer_command("serve", "--bind", "no-such-host.invalid:50051")
    assert (ended.returncode, ended.stdout) == (3, "")
    wanted = "--bind no-such-host.invalid:50051: the host no-such-host.invalid does not resolve: "
    assert wanted in ended.stderr
    assert "--insecure" not in ended.stderr


def test_help_is_not_truncated():
    commands = reducer_command("--help").stdout.split("Commands:")[1]
    assert len(commands.splitlines()) == 9
    assert "..." not in commands


def test_help_shows_processes_and_not_their_former_name():
    shown = reducer_command("serve", "--help").stdout
    assert "--processes N" in shown
    assert "--workers" not in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bind", "0.0.0.0:0"], "--insecure"),
        (["--bind", "::1:50078"], "write [::1]:50078"),
        (["--memory-limit", "4X"], "'4X' is not a size"),
        (["--bind", "127.0.0.1"], "'127.0.0.1' is not HOST:PORT"),
        (["--bind", "127.0.0.1:70000"], "70000"),
        (["--bind", "127.0.0.1:0", "--memory-limit", "0"], "--memory-limit 0"),
        (["--processes", "0"], "--processes 0: must be 1 to 256"),
        (["--workers", "0"], "--processes 0: must be 1 to 256"),
        (["--port-range", "9-8"], "--port-range 9-8: write FIRST-LAST, such as 50051-50066"),
        (
            ["--port-range", "7000-7002", "--processes", "2"],
            "2 processes take 4 ports, and it has 3: let it have 4",
        ),
        (["--port-range", "7000-7009", "--data-port", "8000"], "has the data ports: leave one out"),
        (["--port-range", "7000-7009", "--bind", "7001"], "--port-range 7000-7009 begins with another port"),
    ],
)
def test_wrong_usage(arguments, text):
    ended = reducer_command("serve", *arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert text in ended.stderr


def test_insecure_allows_any_address(serve, ranks, job):
    reducer = serve("--insecure", bind="0.0.0.0:0")
    assert reducer.address.startswith("0.0.0.0:")
    ranks.run(2, one_round, [f"127.0.0.1:{reducer.port}"], job, group=False)


def one_round(rank, reducers, job):
    with rank.state(reducers, job) as state:
        rank.round(state)


def test_status_without_an_answer(free_port):
    address = f"127.0.0.1:{free_port()}"
    ended = reducer_command("status", address, "--timeout", "1")
    assert ended.returncode == 4
    assert address in ended.stderr
    assert "Traceback" not in ended.stderr


def test_status_of_several_addresses_with_one_silent(serve, free_port):
    reducer, silent = serve(), f"127.0.0.1:{free_port()}"
    ended = reducer_command("status", str(reducer.port), silent, "--timeout", "1")
    assert ended.returncode == 4
    assert f"{reducer.address} serving" in ended.stdout
    assert f"{silent} no answer" in " ".join(ended.stdout.split())
    assert f"reducer: no answer from {silent}: " in ended.stderr


def test_status_watch_runs_until_ctrl_c(serve):
    reducer = serve()
    command = [warm("reducer"), "-m", "reducer", "status", "--json", "--watch", "0.01", reducer.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        _, stderr = watching.communicate(timeout=30)
    assert "received_bytes_per_s" not in looks[0]["total"]
    assert looks[1]["total"]["received_bytes_per_s"] == 0
    assert looks[1]["processes"][0]["uptime_seconds"] > looks[0]["processes"][0]["uptime_seconds"]
    assert (watching.returncode, stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "text"), [(["::1:50"], "in brackets, [::1]:50"), (["--watch", "0"], "--watch 0")]
)
def test_wrong_usage_of_status(arguments, text):
    ended = reducer_command("status", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert text in ended.stderr


# ---- a rank that fails before the others join ----


def fails_early(rank, reducers, job):
    """Fail and leave on rank 0 before rank 1 joins; return the error of rank 1."""
    state = rank.state(reducers, job)
    if rank.number == 0:
        state.fail(RuntimeError("the script is wrong"))
        rank.tell("failed")
        state.close()
        os._exit(3)
    rank.hear()
    error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
    return f"{type(error).__name__}: {error}"


def test_a_late_rank_learns_why_another_rank_has_left(fresh_ranks, reducers, job):
    call = fresh_ranks().begin(2, fails_early, reducers(2), job)
    call.hear(0)
    call.tell(1, "come")
    dead, answer = call.answers()
    assert dead.code == 3
    assert "WorkerFailed" in answer
    assert "the script is wrong" in answer

"""Elastic jobs of real processes: workers are killed and join, and all have the same bits after every step."""

from __future__ import annotations

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.elastic_workers import Worker, assert_alike, steps_of
from support.processes.reducers import Reducer, status_of


@pytest.fixture
def start(tmp_path: Path, serve: Callable[..., Reducer]) -> Iterator[Any]:
    """Start a worker of this test's job, over two reducers; `start.stop()` makes all workers end after a step."""
    running: list[Worker] = []
    shared = {"REDUCTION_JOB": f"elastic-{uuid.uuid4().hex[:6]}", "REDUCTION_REDUCERS": ""}
    shared["REDUCTION_REDUCERS"] = ",".join(serve().address for _ in range(2))

    stop = tmp_path / "stop"

    def one(rank: int, size: int, steps: int = 1_000_000, **more: str) -> Worker:
        variables = {
            "REDUCTION_WORLD_SIZE": str(size),
            "STEPS": str(steps),
            "STOP": str(stop),
            "HOST": str(tmp_path),
        }
        running.append(Worker(tmp_path, rank, **(shared | variables | more)))
        return running[-1]

    one.stop = stop.touch
    yield one
    for worker in running:
        worker.process.kill()
        worker.process.wait()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.full)])
def test_the_others_continue_and_a_new_worker_is_admitted(start: Any, victim: int) -> None:
    workers = [start(rank, 3, SKIPS="1") for rank in range(3)]
    workers[victim].wait_for(lambda line: line["step"] == 5)
    workers[victim].process.kill()
    left = [worker for worker in workers if worker.rank != victim]
    others = [worker.rank for worker in left]
    left[0].wait_for(lambda line: line["members"] == others)
    new = start(victim, 3, SKIPS="1")
    new.wait_for(lambda line: line["step"] > new.lines[0]["step"] + 5)
    start.stop()
    said = [worker.end() for worker in (*left, new)]
    assert_alike(*said, workers[victim].lines)
    for lines in said[:2]:
        assert steps_of(lines) == list(range(1, len(lines) + 1))  # no step was lost or repeated
        assert lines[-1]["members"] == [0, 1, 2]
        skipped = [line["step"] for line in lines if line["skipped"] == [str(line["members"][0])]]
        assert skipped == [line["step"] for line in lines if line["step"] % 5 == 0]
        assert lines[-1]["changes"] == [[[0, 1, 2], others], [others, [0, 1, 2]]]
    first = said[2][0]["step"]
    assert steps_of(said[2]) == list(range(first, len(said[0]) + 1))
    # Every sample is used once, except at most one batch of the killed worker.
    used = [sample for lines in (*said, workers[victim].lines) for line in lines for sample in line["batch"]]
    assert len(used) == len(set(used))
    assert f"rank {victim}" in left[0].log.text
    assert f"taking in ranks [{victim}]" in left[0].log.text


@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_leaves_cleanly(start: Any, victim: int) -> None:
    """A killed worker could not prove that it has ended, and the other one would wait for it."""
    workers = [start(rank, 2, LEAVES="1") for rank in range(2)]
    workers[victim].wait_for(lambda line: line["step"] == 5)
    workers[victim].process.send_signal(signal.SIGTERM)
    gone = workers[victim].end()
    left = workers[1 - victim]
    left.wait_for(lambda line: line["step"] == gone[-1]["step"] + 5)
    start.stop()
    lines = left.end()
    assert_alike(lines, gone)
    assert steps_of(lines) == list(range(1, len(lines) + 1))
    assert lines[-1]["changes"] == [[[0, 1], [1 - victim]]]
    used = [sample for line in (*lines, *gone) for sample in line["batch"]]
    assert len(used) == len(set(used)), "no sample twice"


@pytest.mark.timeout(300)
@pytest.mark.full
def test_a_worker_and_a_reducer_die_at_the_same_time(start: Any, serve: Callable[..., Reducer]) -> None:
    first, second = serve(), serve()
    # No worker waits for the killed reducer.
    settings = {"REDUCTION_REDUCERS": f"{first.address},{second.address}", "REDUCTION_JOIN_TIMEOUT_S": "600"}
    workers = [start(rank, 3, 40, **settings) for rank in range(3)]
    workers[1].wait_for(lambda line: line["step"] == 5)
    second.log.spare()
    second.kill()
    workers[1].process.kill()
    said = [workers[0].end(), workers[2].end()]
    assert_alike(*said, workers[1].lines)
    assert [steps_of(lines) for lines in said] == [list(range(1, 41))] * 2


@pytest.mark.timeout(300)
@pytest.mark.full
def test_a_stopped_worker_is_waited_for(start: Any) -> None:
    workers = [start(rank, 2, 20) for rank in range(2)]
    workers[1].wait_for(lambda line: line["step"] == 5)
    os.kill(workers[1].process.pid, signal.SIGSTOP)
    time.sleep(8)
    os.kill(workers[1].process.pid, signal.SIGCONT)
    said = [worker.end() for worker in workers]
    assert_alike(*said)
    assert all(line["members"] == [0, 1] for lines in said for line in lines)


@pytest.mark.timeout(300)
@pytest.mark.full
def test_a_worker_that_stays_stopped_is_left_out_after_the_timeout(start: Any) -> None:
    workers = [start(rank, 3, REDUCTION_TIMEOUT_S="8") for rank in range(3)]
    workers[1].wait_for(lambda line: line["step"] == 5)
    os.kill(workers[1].process.pid, signal.SIGSTOP)
    workers[0].wait_for(lambda line: line["members"] == [0, 2])
    at = workers[0].lines[-1]["step"]
    workers[0].wait_for(lambda line: line["step"] > at + 5)
    os.kill(workers[1].process.pid, signal.SIGCONT)
    assert "WorkerLost" in workers[1].error()
    start.stop()
    said = [worker.end() for worker in (workers[0], workers[2])]
    assert_alike(*said, workers[1].lines)
    assert steps_of(said[0]) == list(range(1, len(said[0]) + 1))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full)])
def test_a_newcomer_that_dies_or_stops_half_way_costs_the_others_nothing(start: Any, signum: int) -> None:
    workers = [start(rank, 2) for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    newcomer = start(5, 2, FREEZE="take")
    newcomer.wait_for(lambda line: "freezes" in line)
    os.kill(newcomer.process.pid, signum)
    at = workers[0].lines[-1]["step"]
    for worker in workers:
        worker.wait_for(lambda line: line["step"] > at + 20)
        assert worker.lines[-1]["changes"] == []
    # Another newcomer is still admitted, alone if the stopped one prevents admitting both together.
    new = start(6, 2)
    new.wait_for(lambda line: line["step"] > new.lines[0]["step"] + 5)
    start.stop()
    said = [worker.end() for worker in (*workers, new)]
    assert_alike(*said)
    assert said[0][-1]["members"] == [0, 1, 6]
    assert steps_of(said[0]) == list(range(1, len(said[0]) + 1))


@pytest.mark.timeout(300)
@pytest.mark.full
def test_a_newcomer_that_stops_at_the_worst_moment(start: Any) -> None:
    """The others are already waiting for it, and then continue without it."""
    workers = [start(rank, 2) for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    newcomer = start(5, 2, FREEZE="take_rest")
    newcomer.wait_for(lambda line: "freezes" in line)
    at = workers[0].lines[-1]["step"]
    for worker in workers:
        worker.wait_for(lambda line: line["step"] > at + 20)
    newcomer.process.kill()
    start.stop()
    said = [worker.end() for worker in workers]
    assert_alike(*said)
    assert said[0][-1]["members"] == [0, 1]
    assert steps_of(said[0]) == list(range(1, len(said[0]) + 1))


@pytest.mark.timeout(300)
def test_weights_that_change_outside_of_the_optimizer(start: Any) -> None:
    workers = [start(rank, 2, CLIP="1") for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    new = start(2, 2, CLIP="1")
    new.wait_for(lambda line: line["step"] > new.lines[0]["step"] + 5)
    start.stop()
    assert_alike(*(worker.end() for worker in (*workers, new)))
    assert "get the whole state again" in workers[0].log.text


@pytest.mark.timeout(300)
def test_hooks_of_the_optimizer_may_sum_over_the_workers(start: Any) -> None:
    """A newcomer replays steps without the hooks; otherwise it would wait for sums that the others are not in."""
    workers = [start(rank, 2, HOOK="step") for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    new = start(2, 2, HOOK="step")
    new.wait_for(lambda line: line["step"] > new.lines[0]["step"] + 5)
    start.stop()
    assert_alike(*(worker.end() for worker in (*workers, new)))
    assert "once more" not in workers[0].log.text


@pytest.mark.timeout(300)
def test_a_newcomer_that_sums_while_receiving_the_training_gets_an_error(start: Any) -> None:
    workers = [start(rank, 2) for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    assert "ConfigError: this worker is receiving the training" in start(2, 2, HOOK="load").error()
    start.stop()
    said = [worker.end() for worker in workers]
    assert_alike(*said)
    assert said[0][-1]["members"] == [0, 1]


@pytest.mark.timeout(300)
def test_too_few_workers_wait_for_another_one(start: Any) -> None:
    workers = [start(rank, 2, REDUCTION_MIN_WORKERS="2") for rank in range(2)]
    workers[1].wait_for(lambda line: line["step"] == 5)
    workers[1].process.kill()
    killed = workers[1].lines
    new = start(1, 2, REDUCTION_MIN_WORKERS="2")
    new.wait_for(lambda line: line["step"] > new.lines[0]["step"] + 5)
    start.stop()
    said = [workers[0].end(), new.end()]
    assert_alike(*said, killed)
    assert steps_of(said[0]) == list(range(1, len(said[0]) + 1))
    # At most one step was done by a single worker: the step in which the other one was lost.
    assert sum(len(line["in_sum"]) == 1 for line in said[0]) <= 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("victim", "min_workers", "error"),
    [
        (1, 2, "WorkersMissing: 1 workers are left, min_workers is 2"),
        pytest.param(0, 1, "no majority", marks=pytest.mark.full),
    ],
    ids=["less than min_workers", "half of them without the first"],
)
def test_a_worker_left_alone_can_save_the_training(
    start: Any, tmp_path: Path, victim: int, min_workers: int, error: str
) -> None:
    settings = {"REDUCTION_MIN_WORKERS": str(min_workers), "REDUCTION_JOIN_TIMEOUT_S": "5"}
    saves = [tmp_path / f"saved-{rank}" for rank in range(2)]
    workers = [start(rank, 2, SAVES=str(saves[rank]), **settings) for rank in range(2)]
    left = workers[1 - victim]
    left.wait_for(lambda line: line["step"] == 5)
    workers[victim].process.kill()
    assert error in left.error()
    last = left.lines[-1]["step"]
    saved = torch.load(saves[1 - victim])
    assert (saved["step"], saved["weights"]) == (last, left.lines[-1]["weights"])
    again = [
        start(rank, 2, last + 5, REDUCTION_RUN="again", LOADS=str(saves[1 - victim])) for rank in range(2)
    ]
    said = [worker.end() for worker in again]
    assert_alike(*said, left.lines, workers[victim].lines)
    assert steps_of(said[0]) == list(range(last + 1, last + 6))


@pytest.mark.timeout(300)
def test_half_of_the_workers_continues_when_the_first_returns_on_its_host(start: Any, tmp_path: Path) -> None:
    workers = [start(rank, 2, REDUCTION_STALL_WARN_S="1") for rank in range(2)]
    workers[1].wait_for(lambda line: line["step"] == 5)
    workers[0].process.kill()
    (tmp_path / "other").mkdir()
    elsewhere = start(0, 2, HOST=str(tmp_path / "other"))
    left = workers[1]
    deadline = time.monotonic() + 60
    while "ranks [0] are back, but on another host" not in left.log.text:
        assert time.monotonic() < deadline, left.log.text
        time.sleep(0.1)
    assert not any(line["members"] == [1] for line in left.lines)
    assert not elsewhere.lines
    elsewhere.process.kill()
    back = start(0, 2)
    back.wait_for(lambda line: line["step"] > back.lines[0]["step"] + 5)
    start.stop()
    said = [left.end(), back.end()]
    assert_alike(*said, workers[0].lines)
    assert steps_of(said[0]) == list(range(1, len(said[0]) + 1))  # no step was lost or repeated
    assert said[0][-1]["members"] == [0, 1]
    assert not list(tmp_path.glob("reduction-*"))


@pytest.mark.timeout(300)
def test_workers_that_cannot_take_part_get_an_error_and_the_others_do_not(start: Any) -> None:
    workers = [start(rank, 2, PAUSE_S="0.01") for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    other_model = start(2, 2, 9, WIDTH="17")
    other_size = start(2, 3, 9)
    other_dtype = start(2, 2, 9, REDUCTION_WIRE_DTYPE="bf16")
    other_groups = start(3, 2, 9, GROUPS="1")
    other_run = start(2, 2, 9, REDUCTION_RUN="yesterday")
    assert "ConfigError: rank 2 has world_size=2, wire_dtype=None, a model of" in other_model.error()
    assert "world_size=3" in other_size.error()
    assert "wire_dtype=bf16" in other_dtype.error()
    assert "ConfigError: the optimizer of this worker has groups of [1," in other_groups.error()
    assert f"({socket.gethostname()}) of the job has" in (text := other_run.error())
    assert "run='yesterday'" in text
    at = workers[0].lines[-1]["step"]
    for worker in workers:
        worker.wait_for(lambda line: line["step"] > at + 5)
        assert worker.lines[-1]["members"] == [0, 1]
        worker.log.check()


@pytest.mark.timeout(300)
def test_state_that_cannot_be_sent_refuses_the_newcomer_and_costs_the_others_nothing(start: Any) -> None:
    workers = [start(rank, 2, SECRET="1") for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 4)
    error = start(2, 2).error()
    assert "ConfigError: rank 0 (" in error
    assert "at optimizer.param_groups.0.secret" in error
    start.stop()
    said = [worker.end() for worker in workers]
    assert_alike(*said)
    assert said[0][-1]["changes"] == []


@pytest.mark.timeout(300)
def test_a_wrong_token_fails_at_once_and_does_not_affect_the_others(
    start: Any, serve: Callable[..., Reducer], tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path, token in (
        (right, "r1ght-t0ken-of-32-characters-or-so"),
        (wrong, "wr0ng-t0ken-of-32-characters-or-so"),
    ):
        path.touch(0o600)
        path.write_text(f"*:{token}\n")
    reducers = [serve("--token-file", str(right)) for _ in range(2)]
    variables = {"REDUCTION_REDUCERS": ",".join(reducer.address for reducer in reducers)}
    workers = [start(rank, 2, REDUCTION_TOKEN_FILE=str(right), **variables) for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    for reducer in reducers:
        reducer.log.spare()
    assert "Unauthenticated" in start(2, 2, REDUCTION_TOKEN_FILE=str(wrong), **variables).error()
    start.stop()
    said = [worker.end() for worker in workers]
    assert_alike(*said)
    assert said[0][-1]["changes"] == []


@pytest.mark.timeout(300)
def test_reducers_that_cannot_be_reached_are_named(start: Any) -> None:
    worker = start(0, 2, REDUCTION_REDUCERS="127.0.0.1:9,127.0.0.1:10", REDUCTION_JOIN_TIMEOUT_S="2")
    error = worker.error()
    assert "ReducerUnavailable: no reducer can be reached: 127.0.0.1:" in error
    assert "Connection refused" in error


@pytest.mark.timeout(300)
@pytest.mark.full
def test_the_later_of_two_processes_with_one_identity_gets_an_error(start: Any) -> None:
    workers = [start(rank, 2) for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 3)
    assert "RankTaken: rank 1 is a live process" in start(1, 2).error()
    newcomers = [start(2, 2) for _ in range(2)]
    deadline = time.monotonic() + 60
    while all(one.process.poll() is None for one in newcomers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (late,) = (one for one in newcomers if one.process.poll() is not None)
    assert "RankTaken: rank 2 is a live process" in late.error()
    (taken,) = (one for one in newcomers if one is not late)
    taken.wait_for(lambda line: line["step"] > taken.lines[0]["step"] + 5)
    start.stop()
    said = [worker.end() for worker in (*workers, taken)]
    assert_alike(*said)
    assert said[0][-1]["members"] == [0, 1, 2]


@pytest.mark.timeout(300)
def test_a_parameter_without_a_gradient_is_an_error(start: Any) -> None:
    worker = start(0, 1, 9, UNUSED="1")
    assert "1 of 7 parameters got no gradient in the last step, such as spare" in worker.error()


@pytest.mark.timeout(300)
def test_a_worker_that_leaves_is_not_a_loss(start: Any) -> None:
    workers = [start(rank, 3, 10 if rank == 1 else 20) for rank in range(3)]
    said = [worker.end() for worker in workers]
    assert_alike(*said)
    assert [len(lines) for lines in said] == [20, 10, 20]
    assert said[0][-1]["members"] == [0, 2]


def test_the_status_shows_the_generation(start: Any, serve: Callable[..., Reducer]) -> None:
    reducer = serve()
    worker = start(0, 1, REDUCTION_REDUCERS=reducer.address, REDUCTION_JOB="shown")
    worker.wait_for(lambda line: line["step"] == 2)
    (job,) = status_of(reducer.address)["jobs"]
    assert job["job"] == "shown"

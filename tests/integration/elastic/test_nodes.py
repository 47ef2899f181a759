"""Workers that are nodes of two ranks, each started by torchrun: a rank that dies takes its node out."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes.elastic_workers import Worker, assert_alike, steps_of
from support.processes.reducers import Reducer
from support.processes.torchrun import torchrun


@pytest.fixture
def start(tmp_path: Path, serve: Callable[..., Reducer]) -> Iterator[Any]:
    """Start a node of this test's job; `start.stop()` makes all nodes end after a step."""
    running: list[Worker] = []
    stop = tmp_path / "stop"
    reducers = ",".join(serve().address for _ in range(2))
    job = f"nodes-{uuid.uuid4().hex[:6]}"
    shared = {"REDUCTION_JOB": job, "REDUCTION_REDUCERS": reducers}

    def one(rank: int, size: int, **more: str) -> Worker:
        variables = {
            "REDUCTION_WORLD_SIZE": str(size),
            "STEPS": "1000000",
            "STOP": str(stop),
            "PAUSE_S": "0.15",
            "HOST": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        }
        variables["REDUCTION_LOCAL_GROUP"] = "2"
        running.append(Worker(tmp_path, rank, torchrun(2), **(shared | variables | more)))
        return running[-1]

    one.stop, one.job = stop.touch, job
    yield one
    for worker in running:
        worker.process.terminate()  # torchrun then ends its ranks
    for worker in running:
        worker.process.wait(60)


def kill_rank(worker: Worker, local: int, job: str) -> None:
    """Kill the process of a local rank."""
    wanted = {f"REDUCTION_JOB={job}", f"REDUCTION_RANK={worker.rank}", f"LOCAL_RANK={local}"}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((folder / "environ").read_text().split("\0")):
                os.kill(int(folder.name), signal.SIGKILL)
                return
    raise AssertionError(f"no local rank {local}")


def by_rank(*workers: Worker) -> list[list[dict[str, Any]]]:
    """Return the output of each rank of these workers."""
    return [
        [line for line in worker.lines if line["local"] == local] for worker in workers for local in (0, 1)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_rank_that_dies_takes_its_node_out_and_it_comes_back(start: Any, victim: int) -> None:
    workers = [start(rank, 3, SKIPS="1") for rank in range(3)]
    lost = workers[1]
    lost.wait_for(lambda line: line["step"] == 5)
    kill_rank(lost, victim, start.job)
    assert lost.process.wait(60) != 0  # torchrun has ended the other rank, or it has ended on its own
    workers[0].wait_for(lambda line: line["members"] == [0, 2])
    new = start(1, 3, SKIPS="1")
    new.wait_for(lambda line: line["step"] > new.lines[0]["step"] + 5)
    start.stop()
    left = workers[0], workers[2]
    for worker in (*left, new):
        assert worker.process.wait(60) == 0, worker.log.text
    assert_alike(*by_rank(*workers, new))
    for lines in by_rank(*left):
        assert steps_of(lines) == list(range(1, len(lines) + 1))  # no step was lost or repeated
        assert lines[-1]["changes"] == [[[0, 1, 2], [0, 2]], [[0, 2], [0, 1, 2]]]
        skipped = [line["step"] for line in lines if line["skipped"] == ["0 (its 0)"]]
        assert skipped == [line["step"] for line in lines if line["step"] % 5 == 0]
    assert [lines[-1]["members"] for lines in by_rank(new)] == [[0, 1, 2]] * 2
    used = [sample for lines in by_rank(*workers, new) for line in lines for sample in line["batch"]]
    assert len(used) == len(set(used))


@pytest.mark.timeout(300)
def test_ranks_that_cannot_form_a_worker(start: Any) -> None:
    wrong_size = start(0, 1, REDUCTION_LOCAL_GROUP="3")
    assert wrong_size.process.wait(60) != 0
    assert "ConfigError: local_group is 3, and the default process group has 2 ranks" in wrong_size.log.text
    not_said = start(0, 1, REDUCTION_LOCAL_GROUP="")
    assert not_said.process.wait(60) != 0
    assert "if these 2 are the ranks of one node, set local_group=2" in not_said.log.text


@pytest.mark.timeout(300)
@pytest.mark.full
def test_an_error_of_the_first_rank_ends_its_node(start: Any) -> None:
    settings = {"REDUCTION_MIN_WORKERS": "2", "REDUCTION_JOIN_TIMEOUT_S": "15"}
    workers = [start(rank, 2, **settings) for rank in range(2)]
    workers[0].wait_for(lambda line: line["step"] == 5)
    workers[1].process.terminate()
    assert workers[0].process.wait(60) != 0
    assert "WorkersMissing: 1 workers are left, min_workers is 2" in workers[0].log.text

"""A real Slurm: a heterogeneous job with two reducer hosts and two worker hosts, which trains."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.slurm import Slurm, missing

TRAINING = Path(__file__).parents[1] / "integration" / "launch" / "train_plain.py"
BIN = Path(sys.executable).parent
JOB_S = 240.0
lacks = missing()

pytestmark = [
    pytest.mark.skipif(lacks is not None, reason=f"a Slurm needs {lacks}"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm(["gpu1", "gpu2"], ["cpu-red01", "cpu-red02"]) as cluster:
        yield cluster


def submit(slurm: Slurm, name: str, script: str) -> tuple[int, str]:
    """Run a batch script to its end; return its exit code and its steps' output."""
    path = slurm.folder / f"{name}.sbatch"
    path.write_text(script)
    return slurm.batch(
        path,
        timeout_s=JOB_S,
        PATH=f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
        OMP_NUM_THREADS="1",
        REDUCER_PROCESSES="1",
    )


def test_a_heterogeneous_job_trains_and_ends(slurm: Slurm) -> None:
    script = f"""#!/bin/bash
#SBATCH --partition=gpu --nodes=2 --ntasks-per-node=1
#SBATCH hetjob
#SBATCH --partition=cpu --nodes=2 --ntasks-per-node=1
srun --het-group=0,1 reducer run --cluster slurm:1:50051 --insecure --exit-after-job 1 -- \\
    torchrun --nproc-per-node 1 {TRAINING}
"""
    code, said = submit(slurm, "heterogeneous", script)
    assert code == 0, said + slurm.logs()
    found = re.findall(r"rank (\d): (\[.*?\]) (\S+)", said)
    assert sorted(rank for rank, _, _ in found) == ["0", "1"], said
    [(hooks, _)] = {(hooks, weights) for _, hooks, weights in found}
    assert hooks == "['reduction_hook']"
    # Each host has one process per core.
    assert re.search(r"2 ranks, \d+ reducers? \(cpu-red01:50051, .*from REDUCTION_REDUCERS\)", said), said
    assert "cpu-red02:50051" in said
    for index in range(2):
        assert f"this host is node {index} of 2 (slurm), MASTER_ADDR=gpu1 MASTER_PORT=29500" in said
        assert f"this host is reducer {index} of 2 (slurm)" in said
    assert said.count("no job for 1 s (--exit-after-job)") == 2


def test_named_reducer_nodes_of_a_job(slurm: Slurm) -> None:
    script = """#!/bin/bash
#SBATCH --partition=cpu --nodes=2 --ntasks-per-node=1
export REDUCTION_REDUCERS=slurm:nodes=cpu-red02:50051
srun reducer run --insecure --wait-for-job 1 -- sh -c 'echo $SLURMD_NODENAME $PET_NNODES $REDUCTION_REDUCERS'
"""
    _, said = submit(slurm, "nodes", script)
    assert "cpu-red01 1 cpu-red02:50051\n" in said
    assert "reducer: no job came within 1 s (--wait-for-job)" in said


def test_several_tasks_on_a_node_are_refused(slurm: Slurm) -> None:
    script = """#!/bin/bash
#SBATCH --partition=gpu --nodes=1 --ntasks-per-node=2
srun reducer run --hosts gpu1 --host gpu1 -- true
"""
    code, said = submit(slurm, "tasks", script)
    assert code == 2, said
    assert "reducer run: SLURM_LOCALID is 1: `reducer run` runs once per node" in said

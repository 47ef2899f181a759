"""`deploy/slurm/het.sbatch` on a Slurm of four nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.slurm import Slurm, missing

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/slurm/het.sbatch"
TRAINING = ROOT / "tests/support/training/train_script.py"
lacks = missing()

pytestmark = [
    pytest.mark.skipif(lacks is not None, reason=f"a Slurm needs {lacks}"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm() as cluster:
        yield cluster


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script in a folder of its own, with a pause that a test can wait for."""
    copy = tmp_path / SCRIPT.name
    copy.write_text(SCRIPT.read_text().replace("--exit-after-job 30", "--exit-after-job 1"))
    return copy


def commands() -> dict[str, str]:
    """The variables that lead a job to this environment's `reducer` and `torchrun`."""
    return {"PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)}


def test_a_heterogeneous_job_trains(slurm: Slurm, script: Path, tmp_path: Path) -> None:
    code, output = slurm.batch(script, str(TRAINING), str(tmp_path), "2", **commands())
    assert code == 0, output
    [line] = re.findall("reduction-server: job (.*)", output)
    assert re.match(
        r"slurm-\d+, 2 ranks, \d+ reducers \(cpu-1:50051, cpu-2:50051.*; from REDUCTION_REDUCERS\), tcp", line
    )
    assert output.count("listening on 0.0.0.0:50051") == 2
    (losses, weights), (_, others) = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    assert losses[-1] < losses[0]
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert slurm.jobs() == []


@pytest.mark.full
def test_a_training_that_fails_at_once_ends_the_job(slurm: Slurm, script: Path) -> None:
    code, output = slurm.batch(script, "no-such-script.py", **commands())
    assert code != 0, output
    assert "no-such-script.py" in output
    assert slurm.jobs() == []

"""`deploy/slurm/het.sbatch`: the steps that it starts, with and without TLS, and a run on a Slurm of four nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.artefacts import checked_settings
from support.network.certificates import Authority
from support.slurm import Slurm, missing

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/slurm/het.sbatch"
TRAINING = ROOT / "tests/support/training/train_script.py"
lacks = missing()

on_slurm = pytest.mark.skipif(lacks is not None, reason=f"a Slurm needs {lacks}")
pytestmark = pytest.mark.timeout(400)

#: Stand-ins for `scontrol` and `srun`: they give the nodes, and record how a step of component 1 was started.
STUBS = {
    "scontrol": "printf 'gpu-1\\ngpu-2\\n'",
    "srun": '[ "$1" != --het-group=1 ] || { shift 2; printf "%s\\n" "$@" >words; env >variables; }',
}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm() as cluster:
        yield cluster


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return the script in its own folder, with a pause that a test can wait for."""
    copy = tmp_path / SCRIPT.name
    copy.write_text(SCRIPT.read_text().replace("--exit-after-job 30", "--exit-after-job 1"))
    return copy


def commands() -> dict[str, str]:
    """Return the variables that point a job to this environment's `reducer` and `torchrun`."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": f"{ROOT}:{ROOT}/proto",
    }


@pytest.mark.parametrize("is_secret", [False, True])
def test_reducers_and_workers_use_the_secrets_folder(tmp_path: Path, is_secret: bool) -> None:
    for name, text in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    made_as_in_security(secrets)
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    given |= {"SECRETS": str(secrets)} if is_secret else {}
    subprocess.run(["bash", str(SCRIPT), "train.py"], cwd=tmp_path, env=given, check=True, timeout=30)
    words = (tmp_path / "words").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in (tmp_path / "variables").read_text().splitlines())
    ours = {name: value for name, value in variables.items() if name.startswith("REDUC")}
    settings = checked_settings(words, **ours)
    assert settings["insecure"] is not is_secret
    kinds = ("tls_ca", "tls_cert", "tls_key", "token_file")
    theirs = [ours.get(f"REDUCTION_{kind.upper()}") for kind in kinds]
    if is_secret:
        names = ("ca.pem", "reducer.pem", "reducer.key", "tokens")
        assert [settings[kind.replace("_", "-")] for kind in kinds] == [str(secrets / name) for name in names]
        assert theirs == [str(secrets / name) for name in ("ca.pem", "worker.pem", "worker.key", "tokens")]
    else:
        assert theirs == [None] * 4


def made_as_in_security(folder: Path, *names: str) -> None:
    """Create the files as in SECURITY.md; the reducers have these names."""
    authority = Authority(folder)
    for name, identities in (("reducer", names or ("cpu-1",)), ("worker", ("worker",))):
        files = authority.files(*identities)
        Path(files.cert).rename(folder / f"{name}.pem")
        Path(files.key).rename(folder / f"{name}.key")
    (folder / "tokens").touch(0o600)
    (folder / "tokens").write_text(f"*:{'a' * 32}\n")


@on_slurm
@pytest.mark.parametrize("is_secret", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_heterogeneous_job_trains(slurm: Slurm, script: Path, tmp_path: Path, is_secret: bool) -> None:
    made_as_in_security(tmp_path, "cpu-1", "cpu-2")
    secrets = {"SECRETS": str(tmp_path)} if is_secret else {}
    code, output = slurm.batch(script, str(TRAINING), str(tmp_path), "2", **commands(), **secrets)
    assert code == 0, output
    [line] = re.findall("reduction-server: job (.*)", output)
    assert re.match(
        r"slurm-\d+, 2 ranks, 2 reducers( with \d+ processes)? "
        r"\(cpu-1:50051, cpu-2:50051; from REDUCTION_REDUCERS\), tcp",
        line,
    )
    assert output.count("listening on 0.0.0.0:50051") == 2
    (losses, weights), (_, others) = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    assert losses[-1] < losses[0]
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert slurm.jobs() == []


@on_slurm
@pytest.mark.full
def test_a_training_run_that_fails_at_once_ends_the_job(slurm: Slurm, script: Path) -> None:
    code, output = slurm.batch(script, "no-such-script.py", **commands())
    assert code != 0, output
    assert "no-such-script.py" in output
    assert slurm.jobs() == []

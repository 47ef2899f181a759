"""Every script in examples/ runs as its own text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from integration.conftest import serve  # noqa: F401
from support.processes.children import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_ddp():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(EXAMPLES / "ddp.py")],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_hsdp_is_as_on_gloo():
    losses = [hsdp_losses("reduction"), hsdp_losses("gloo")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
    assert losses[0][-1] < losses[0][0]


def hsdp_losses(backend):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command += [str(EXAMPLES / "hsdp.py"), "--width", "64", "--steps", "4", "--backend", backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment())
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", done.stdout, re.MULTILINE)]


@pytest.mark.timeout(400)  # two trainings, and torch loads slowly
def test_local_sgd_leaves_all_ranks_with_the_same_weights():
    texts = {options: local_sgd(*options) for options in ((), ("--wire-dtype", "none"))}
    digests = {
        options: re.findall(r"^weights of the ranks: (.+)$", text, re.MULTILINE)[0].split()
        for options, text in texts.items()
    }
    assert all(len(same) == 2 and len(set(same)) == 1 for same in digests.values())
    assert digests["--wire-dtype", "none"] != digests[()]
    for text in texts.values():
        losses = [float(loss) for loss in re.findall(r"^outer step \d+: loss ([\d.]+)$", text, re.MULTILINE)]
        assert len(losses) == 4
        assert losses[-1] < losses[0]


def local_sgd(*options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(EXAMPLES / "local_sgd.py"), "--outer-steps", "4", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_ddp(serve):  # noqa: F811
    reducer = serve()
    command = [sys.executable, str(EXAMPLES / "without_ddp.py"), reducer.address]
    ranks = [
        subprocess.Popen([*command, str(rank), "2"], stdout=subprocess.PIPE, text=True, env=environment())
        for rank in range(2)
    ]
    try:
        answers = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    sums = "sum [1.0, 1.0, 1.0, 1.0], mean [0.0, 1.5, 3.0, 4.5]\n"
    assert answers == [f"rank {rank}: {sums}" for rank in range(2)]


def test_they_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.rglob("*.py")}
    assert {"ddp.py", "hsdp.py", "local_sgd.py", "train.py", "without_ddp.py"} <= lengths.keys()
    assert max(lengths.values()) <= 80

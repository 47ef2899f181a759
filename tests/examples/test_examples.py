"""Every script in examples/ runs as its own text describes."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from integration.conftest import serve  # noqa: F401
from support.fakes.metadata import Service
from support.processes.children import children_of, environment
from support.processes.reducers import looked_at
from support.processes.torchrun import torchrun
from support.processes.warm import WarmProcess, warm

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_ddp():
    done = subprocess.run(
        [*torchrun(2, python=sys.executable), str(EXAMPLES / "ddp.py")],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@pytest.mark.full
def test_hsdp_matches_gloo():
    losses = [hsdp_losses("reduction"), hsdp_losses("gloo")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
    assert losses[0][-1] < losses[0][0]


def hsdp_losses(backend):
    command = [*torchrun(4), str(EXAMPLES / "hsdp.py"), "--width", "64", "--steps", "4", "--backend", backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment())
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", done.stdout, re.MULTILINE)]


@pytest.mark.timeout(400)  # two trainings, and torch loads slowly
@pytest.mark.full
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
    command = [*torchrun(2), str(EXAMPLES / "local_sgd.py"), "--outer-steps", "4", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_ddp(serve):  # noqa: F811
    reducer = serve()
    command = [warm(), str(EXAMPLES / "without_ddp.py"), reducer.address]
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


@pytest.mark.timeout(200)
def test_elastic_continues_without_a_worker_and_readmits_it(serve):  # noqa: F811
    variables = {
        "REDUCTION_JOB": "elastic",
        "REDUCTION_REDUCERS": serve().address,
        "REDUCTION_WORLD_SIZE": "3",
    }
    command = [warm(), "-u", str(EXAMPLES / "elastic.py"), "--epochs", "20"]

    def start(rank):
        more = environment(**variables, REDUCTION_RANK=str(rank))
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=more)

    workers = [start(rank) for rank in range(3)]
    try:

        def until(wanted):
            line = workers[0].stdout.readline()
            while wanted not in line:
                assert line, f"it ended before there were {wanted}"
                line = workers[0].stdout.readline()

        until("3 workers")
        workers[2].kill()
        workers[2].communicate()
        until("2 workers")
        workers[2] = start(2)
        until("3 workers")
        ends = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    weights = [re.search(r"rank \d done after (\d+ steps, weights \S+)$", end, re.MULTILINE) for end in ends]
    assert all(weights)
    assert len({found[1] for found in weights}) == 1


def test_examples_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.rglob("*.py")}
    assert {"ddp.py", "elastic.py", "hsdp.py", "local_sgd.py", "train.py", "without_ddp.py"} <= lengths.keys()
    assert max(lengths.values()) <= 80


@pytest.mark.timeout(200)
@pytest.mark.parametrize("by", ["SIGTERM", "a notice"])
def test_ranks_stop_together_and_resume(tmp_path, serve, by):  # noqa: F811
    reducer, cloud = serve(), Service()
    command = [*torchrun(4), str(EXAMPLES / "stop_together.py")]
    command += ["--checkpoint", str(tmp_path / "checkpoint.pt")]
    cloud.pages = {"/latest/api/token": ({}, "a token")}
    address = f"http://127.0.0.1:{cloud.server.server_port}"
    variables = environment(REDUCTION_REDUCERS=reducer.address, AWS_EC2_METADATA_SERVICE_ENDPOINT=address)
    if by == "a notice":
        variables["REDUCTION_NOTICES"] = "aws"
    with Path(tmp_path, "stderr").open("w") as errors:
        endless = WarmProcess(
            "torch",
            [*command[1:], "--steps", "1000000"],
            stdin=subprocess.DEVNULL,
            stderr=errors,
            env=variables,
        )
    try:
        said = ""
        while said.count("trains from step 0 on") < 4:
            line = endless.stdout.readline()
            assert line
            said += line
        if by == "SIGTERM":
            os.kill(children_of(endless.pid)[1], signal.SIGTERM)
        cloud.pages["/latest/meta-data/spot/instance-action"] = ({}, '{"action": "stop"}')
        said = endless.stdout.read()
        endless.wait(60)
        cloud.pages = {}
    finally:
        cloud.close()
        endless.kill()
        endless.wait()
        endless.stdout.close()
    assert endless.returncode == 0
    stopped = re.findall(r"rank (\d) stops after step (\d+)", said)
    assert sorted(rank for rank, _ in stopped) == ["0", "1", "2", "3"]
    [step] = {int(step) for _, step in stopped}
    done = subprocess.run(
        [*command, "--steps", f"{step + 5}"], capture_output=True, text=True, timeout=100, env=variables
    )
    assert done.returncode == 0, done.stderr
    assert f"rank 1 trains from step {step + 1} on" in done.stdout
    assert "stops" not in done.stdout
    assert [one["outcome"] for one in looked_at(reducer.address)["ended"]] == ["ended", "ended"]


def run_on_three(serve, name, *arguments):  # noqa: F811
    """Run an example on three ranks; return its output."""
    command = [*torchrun(3), str(EXAMPLES / name), *arguments]
    variables = environment(REDUCTION_REDUCERS=serve().address)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(200)
@pytest.mark.parametrize("flip_in", [25, 0])
def test_differing_weights_are_detected(serve, flip_in):  # noqa: F811
    said = run_on_three(serve, "drift.py", "--flip-in", str(flip_in), "--steps", "35")
    if flip_in:
        # A minimal pattern, because torchrun's ranks write unbuffered, and two of their lines may be merged.
        ended = re.findall(
            r"rank \d ends in step 31: .*?ranks 2 do not have the weights of ranks 0, 1: 2.weight", said
        )
        assert len(ended) == 3, said
    else:
        weights = re.findall(r"rank \d has weights (\w{32})", said)
        assert len(weights) == 3, said
        assert len(set(weights)) == 1


@pytest.mark.timeout(200)
def test_unequal_batches(serve):  # noqa: F811
    said = run_on_three(serve, "unequal_batches.py")
    [difference] = re.findall(r"gradients differ by at most (\S+) from", said)
    assert float(difference) < 1e-5


@pytest.mark.timeout(200)
def test_unequal_gpus(serve):  # noqa: F811
    said = run_on_three(serve, "unequal_gpus.py", "--steps", "3")
    equal, by_speed = (
        json.loads(sizes) for sizes in re.findall(r": (\[.*\]) samples, [\d.]+ s per step", said)
    )
    assert equal == [1024, 1024, 1024]
    assert sum(by_speed) == 3072
    assert runpy.run_path(str(EXAMPLES / "unequal_gpus.py"))["shares"]([1.0, 2.0]) == [1024, 2048]


@pytest.mark.timeout(200)
def test_skipped_and_non_finite_steps(serve):  # noqa: F811
    said = run_on_three(serve, "first_nan.py")
    assert re.findall(r"StepReport\(.*\)", said) == [
        "StepReport(step=3, skipped=('1',), non_finite={})",
        "StepReport(step=6, skipped=(), non_finite={'2': '2.bias'})",
    ]
    weights = re.findall(r"rank \d has weights (\w{32})", said)
    assert len(weights) == 3, said
    assert len(set(weights)) == 1

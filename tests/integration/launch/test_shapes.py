"""Unchanged trainings in the style of public scripts: the same weights as over Gloo, but through the reducers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.processes.children import environment
from support.processes.torchrun import torchrun
from support.processes.warm import warm

SCRIPT = str(Path(__file__).with_name("shapes.py"))
RUN = [sys.executable, "-m", "reducer", "run"]
#: Shapes that do not average through a DDP module's own hook, and those that register one, which is refused.
NOT_BY_DDP = {"subclass_that_averages", "by_hand", "local_sgd", "fsdp2", "hsdp"}
WITH_HOOK = {"power_sgd", "fp16_hook"}
#: One without an all-reduce (its reduce-scatter uses Gloo), and one whose group names Gloo.
OVER_GLOO = {"fsdp2", "gloo_group"}


class Ended(NamedTuple):
    """The outcome of a shape: a hash of its weights, and the bytes that the reducers have received."""

    digest: str
    received: str


def ended(command: list[str]) -> tuple[dict[str, Ended], str]:
    """Run a command; return the outcome of each shape, and stderr."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {
        name: Ended(*rest) for name, *rest in re.findall(r"(\w+) (\w{16}) (\S+)", done.stdout)
    }, done.stderr


@pytest.fixture(scope="module")
def over_gloo() -> dict[str, Ended]:
    shapes, _ = ended([*torchrun(2), SCRIPT])
    assert shapes.keys() > NOT_BY_DDP | WITH_HOOK
    return shapes


@pytest.mark.timeout(400)  # includes the setup of all tests here: twice a dozen scripts that import torch
def test_modules_go_through_reducers_and_nothing_else_does(over_gloo: dict[str, Ended]) -> None:
    names = over_gloo.keys() - WITH_HOOK
    shapes, said = ended([*RUN, "--", *torchrun(2), SCRIPT, *sorted(names)])
    assert shapes.keys() == names
    assert {name: shape.digest for name, shape in shapes.items()} == {
        name: over_gloo[name].digest for name in names
    }
    assert {name for name, shape in shapes.items() if shape.received == "0"} == NOT_BY_DDP
    assert re.search(r"reducer run: \d+ jobs of 2 ranks, \d+ collectives, \S+ MiB in, \S+ MiB out", said), (
        said
    )


def test_all_reductions_go_through_reducers(over_gloo: dict[str, Ended]) -> None:
    shapes, said = ended([*RUN, "--auto", "group", "--", *torchrun(2), SCRIPT])
    assert {name: shape.digest for name, shape in shapes.items()} == {
        name: shape.digest for name, shape in over_gloo.items()
    }
    assert {name for name, shape in shapes.items() if shape.received == "0"} == OVER_GLOO
    assert (
        said.count("new_group(backend='gloo') of ranks 0,1 keeps its backend, so its all-reduces do not") == 1
    )


# ---- however the ranks are started ----

LAUNCHERS = {
    "launch": [warm(), "-m", "torch.distributed.launch", "--nproc-per-node", "2", SCRIPT],
    "spawn": [sys.executable, str(Path(SCRIPT).with_name("launchers.py")), "spawn"],
    "fork": [warm(), str(Path(SCRIPT).with_name("launchers.py")), "fork"],
}


@pytest.mark.parametrize("launcher", ["spawn", "fork"])
def test_ranks_may_be_started_in_any_way(over_gloo: dict[str, Ended], launcher: str) -> None:
    shapes, said = ended([*RUN, "--", *LAUNCHERS[launcher], "plain"])
    assert shapes["plain"].digest == over_gloo["plain"].digest
    assert shapes["plain"].received != "0"
    assert "reducer run: 1 job of 2 ranks, " in said


# ---- no silent failures ----


@pytest.mark.parametrize(
    ("auto", "launcher", "name", "reason"),
    [
        ("ddp", "fork", "by_hand", "rank 0 has created no DistributedDataParallel module"),
        (
            "ddp",
            "fork",
            "local_sgd",
            "no gradients of DistributedDataParallel modules (1) were averaged by them",
        ),
        ("group", "launch", "fsdp2", "rank 0 has reduced nothing; FSDP2"),
        ("group", "launch", "gloo_group", "rank 0 has reduced only in groups of gloo"),
    ],
)
def test_a_warning_explains_why_nothing_went_through_the_reducers(
    auto: str, launcher: str, name: str, reason: str
) -> None:
    _, said = ended([*RUN, "--auto", auto, "--", *LAUNCHERS[launcher], name])
    warning = f"REDUCTION_AUTO={auto}: nothing went through the reducers: {reason}"
    assert said.count(warning) == 1, said
    assert (
        "reducer run: no job joined the reducers, so nothing was summed there: a warning above says why"
        in said
    )

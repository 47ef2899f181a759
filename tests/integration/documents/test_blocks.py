"""Every code block in README.md and docs/ is run, or has a reason here why not."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from support.processes.ranks import Ranks
from support.processes.reducers import Reducer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reducer.commands.main import main

ROOT = Path(__file__).parents[3]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
#: Languages of blocks that can be run. The others (text, toml and so on) are only shown.
RUN = ("python", "sh", "console")
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_ADDRESSES = re.compile(r"(?:10\.0\.0\.[56]|127\.0\.0\.1):50051")

#: Pages whose blocks are all run or checked elsewhere.
PAGES_ELSEWHERE = {"docs/deploying.md": "tests/deploy/test_page.py"}
#: Python blocks that are run elsewhere, by page and first line.
PYTHON_ELSEWHERE = {
    ("docs/elastic.md", "while step < steps:"): "examples/elastic.py",
    ("docs/elastic.md", "try:"): "tests/integration/elastic",
    ("docs/failures.md", "for step in range(first, steps):"): "examples/stop_together.py",
    ("docs/fewer-bytes.md", "class Steps(lightning.Callback):"): "tests/frameworks",
    ("docs/integrations.md", "import lightning"): "tests/frameworks",
    ("docs/operating.md", "from torch.distributed.debug import start_debug_server"): "tests/frameworks",
    (
        "docs/operating.md",
        'with torch.profiler.profile() as profiler, state.trace("traces"):',
    ): "tests/integration/timeline",
    ("docs/integrations.md", "from ray.train import ScalingConfig"): "tests/frameworks",
    ("docs/integrations.md", "from datetime import timedelta"): "tests/frameworks",
    ("docs/logging.md", 'writer = SummaryWriter("runs/first")'): "tests/frameworks",
    ("docs/logging.md", 'mlflow.set_tracking_uri("sqlite:///mlflow.db")'): "tests/frameworks",
    ("docs/logging.md", "class Stats(lightning.Callback):"): "tests/frameworks",
    ("docs/on-the-sums.md", "for batch in loader:"): "examples/unequal_batches.py",
    ("docs/on-the-sums.md", "optimizer.zero_grad()"): "examples/first_nan.py",
    ("docs/on-the-sums.md", "state = rs.attach(ddp_model)"): "examples/drift.py and first_nan.py",
    (
        "docs/process-group.md",
        "from torch.distributed.device_mesh import init_device_mesh",
    ): "examples/hsdp.py",
    (
        "docs/process-group.md",
        "from reduction_server.process_group import ReductionOptions, add_error_feedback",
    ): "tests/integration/process_group",
}
#: Commands that are run elsewhere, by their beginning.
ELSEWHERE = {
    "pip install": "tests/packaging and the Makefile install the same",
    "torchrun ... SCRIPT": "tests/integration/launch",
    "reducer run -- torchrun": "tests/integration/launch",
    "reducer run --hosts": "tests/integration/launch",
    "srun --het-group=0,1 reducer run --cluster": "tests/deploy",
    "export REDUCTION_AUTO=ddp": "tests/integration/launch",
    "torchrun --nproc-per-node 2 examples/local_sgd.py": "tests/examples",
    "torchrun --nnodes 4 --nproc-per-node 1": "tests/integration/doctor",
    "python examples/": "tests/examples",
    "export REDUCTION_JOB=night": "tests/examples",
    "export REDUCTION_RANK=0 REDUCTION_WORLD_SIZE=4 REDUCTION_LOCAL_GROUP=8": "tests/integration/elastic",
    "torchrun --standalone --nproc-per-node 8 train.py": "tests/integration/elastic",
    "REDUCTION_RANK=0 python examples/elastic.py": "tests/examples",
    "spark-submit --conf": "tests/frameworks",
    "promtool test rules": "tests/deploy",
    "promtool check config": "tests/deploy",
    "prometheus --config.file": "tests/deploy",
    "REDUCTION_JOB=resnet torchrun": "tests/integration/launch",
    "sudo .venv/bin/python -m benchmarks.lab": "tests/unit/benchmarks/lab",
    "python -m benchmarks.": "takes minutes and root; its result is kept in docs/measured",
    "REDUCTION_JOB=small REDUCTION_TRACE=traces torchrun": "tests/integration/timeline",
    "REDUCTION_TRACE=traces torchrun": "tests/integration/timeline",
    "REDUCTION_REDUCERS=127.0.0.1:50051,127.0.0.1:50061 torchrun --nproc-per-node 2 examples/ddp.py": "tests/examples",
}
#: Commands of `reducer` whose options are only parsed here, and which are run elsewhere.
ONLY_READ = {
    "reducer status 10.0.0.5:50051 --watch": "it looks until somebody ends it: tests/integration/watching",
    "reducer serve --bind 10.0.0.5:0 --port-range": "eight processes: tests/integration/reducer",
    "reducer doctor": "it measures for seconds: tests/integration/doctor",
}


class Block(NamedTuple):
    """A code block."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which the tables identify it."""
        return self.text.splitlines()[0]

    def __str__(self) -> str:
        return f"{self.page}: {self.first}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        if page in PAGES_ELSEWHERE:
            continue
        for _, language, text in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
            if language in RUN:
                found.append(Block(page, language, textwrap.dedent(text)))
    return found


def commands(block: Block) -> list[str]:
    """Return the commands of a block without comments: all lines, or in a console block those behind a prompt."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    lines = [line.partition("  #")[0].strip() for line in lines]
    return [line for line in lines if line and not line.startswith("#")]


PYTHON = [block for block in blocks() if block.language == "python"]
COMMANDS = [
    (block, command) for block in blocks() if block.language != "python" for command in commands(block)
]
#: Commands that occur on several pages are run once.
ONCE = list({command: (block, command) for block, command in reversed(COMMANDS)}.values())


# ---- in the ranks ----


def run_block(rank: Any, text: str, reducers: list[str]) -> dict[str, bool]:
    """Run a block with the names that its page assumes; return the checks of what it created."""
    os.environ["REDUCTION_REDUCERS"] = ",".join(reducers)
    rank.cleanup.callback(os.environ.pop, "REDUCTION_REDUCERS", None)
    # The ranks of these tests are two nodes of one rank each.
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        rank.cleanup.callback(os.environ.pop, name, None)
    tensor = rank.values(rank.number, (100,))
    ddp_model = DistributedDataParallel(nn.Linear(3, 2, bias=False))
    given = {
        "batches": [torch.ones(1, 3), torch.full((1, 3), 1e9)],
        "ddp_model": ddp_model,
        "device": "cpu",
        "optimizer": torch.optim.SGD(ddp_model.parameters(), 0.1),
        "group": dist.group.WORLD,
        "rank": rank.number,
        "run": "today",
        "reducers": reducers,
        "tensor": tensor,
    }
    if "init_process_group" in text:
        # This process already has a default group; a group of the same backend replaces it.
        text = text.replace(
            'dist.init_process_group("reduction")', 'made = dist.new_group(backend="reduction")'
        )
    space: dict[str, Any] = dict(given)
    exec(compile(text, "block", "exec"), space)
    made = {}
    if "state" in space:
        rank.cleanup.callback(space["state"].close)
    if "ddp_model" in text:
        model = given["ddp_model"]
        model.zero_grad()
        model(torch.full((1, 3), rank.number + 1.0)).sum().backward()
        made["averages"] = torch.allclose(model.module.weight.grad, torch.full((2, 3), 1.5), rtol=0.01)
        made["attached"] = bool(model._comm_hooks)
    if "all_reduce(tensor)" in text:
        made["sums"] = torch.equal(tensor, rank.expected((100,)))
    for name in ("made", "group"):
        if name in text and space.get(name) is not dist.group.WORLD and name in space:
            ones = torch.ones(10)
            dist.all_reduce(ones, group=space[name])
            made[name] = ones.tolist() == [2.0] * 10
    return made or {"imported": True}


def traced(rank: Any, reducers: list[str], job: str, directory: Path, with_profile: bool) -> None:
    """Write the files of `reducer trace traces --profile profiler-0.json` and similar commands to a directory."""
    with rank.state(reducers, job) as state, contextlib.ExitStack() as stack:
        profiler = stack.enter_context(torch.profiler.profile()) if with_profile else None
        with state.trace(directory / "traces"):
            for _ in range(3):
                rank.wait(state.all_reduce(torch.ones(1000)))
    if profiler is not None:
        profiler.export_chrome_trace(str(directory / f"profiler-{rank.number}.json"))


# ---- tests ----


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, ranks: Ranks, reducers: Callable[[int], list[str]]) -> None:
    if (block.page, block.first) in PYTHON_ELSEWHERE:
        compile(block.text, str(block), "exec")
        return
    addresses = reducers(2)
    named = iter(addresses)
    text = _ADDRESSES.sub(lambda _: next(named), block.text)
    for made in ranks.run(2, run_block, text, addresses):
        assert made
        assert all(made.values()), made


@pytest.mark.parametrize(("block", "command"), ONCE, ids=lambda value: str(value)[:70])
def test_command(
    block: Block,
    command: str,
    ranks: Ranks,
    reducers: Callable[[int], list[str]],
    serve: Callable[..., Reducer],
    free_port: Callable[[], int],
    job: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if any(command.startswith(beginning) for beginning in ELSEWHERE):
        return
    words = shlex.split(command.removesuffix("&"))
    assert words[0] == "reducer", f"{command!r} of {block} is neither run nor in ELSEWHERE"
    if any(command.startswith(beginning) for beginning in ONLY_READ):
        # Check that the options exist and accept their values.
        group = click.Context(main)
        meant = main.get_command(group, words[1])
        assert meant is not None
        with meant.make_context(words[1], words[2:], parent=group) as context:
            assert context.params
        return
    if words[1] == "serve":
        assert words.pop(2) == "--bind"
        options = [str(free_port()) if word == "9102" else word for word in words[3:]]
        assert serve(*options).stop() == (0, "")
        return
    monkeypatch.chdir(tmp_path)
    if words[1] == "trace":
        ranks.run(2, traced, reducers(1), job, tmp_path, "--profile" in words, group=False)
    draining = None
    if words[1] == "drain":
        (tmp_path / "tokens").write_text(f"*:{'a' * 32}\n")
        (tmp_path / "tokens").chmod(0o600)
        draining = serve("--token-file", str(tmp_path / "tokens"))
    named = iter([draining.address] if draining is not None else reducers(2))
    words = [_ADDRESSES.sub(lambda _: next(named), word) for word in words]
    result = CliRunner().invoke(main, words[1:], env={"COLUMNS": "90"})
    assert result.exit_code == 0, result.output
    if draining is not None:
        assert draining.end() == (0, "")
    if words[1] == "plan":
        shown = block.text.partition("\n")[2]
        assert [line.rstrip() for line in result.output.splitlines()] == shown.splitlines()


def test_every_entry_refers_to_an_existing_block() -> None:
    assert set(PYTHON_ELSEWHERE) <= {(block.page, block.first) for block in PYTHON}
    unused = [
        one for one in (*ELSEWHERE, *ONLY_READ) if not any(command.startswith(one) for _, command in COMMANDS)
    ]
    assert unused == []
    assert set(PAGES_ELSEWHERE) <= set(PAGES)


def test_only_pages_for_a_clone_ask_for_what_the_wheel_lacks() -> None:
    assert {block.page for block, command in COMMANDS if "-m benchmarks" in command} == {
        "docs/ladder.md",
        "docs/when-it-helps.md",
    }

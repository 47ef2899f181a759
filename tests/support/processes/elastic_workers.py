"""The workers of an elastic job as processes (support/training/elastic_script.py)."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.processes.children import Log, environment
from support.processes.forks import Fork

from benchmarks.lab.hosts import LOOPBACK, Host

SCRIPT = Path(__file__).parents[1] / "training/elastic_script.py"
#: Maximum time of any wait here, in seconds.
PATIENCE_S = 120.0


class Worker:
    """One process of an elastic job, or everything that `command` starts; the script's path is appended to it."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        command: Sequence[str] = (),
        host: Host = LOOPBACK,
        **variables: str,
    ) -> None:
        self.rank = rank
        name = f"worker-{rank}-{uuid.uuid4().hex[:4]}"
        self.log = Log(folder / f"{name}.log")
        self._out = folder / f"{name}.out"
        variables = environment(REDUCTION_RANK=str(rank), **variables)
        self.process: Fork | subprocess.Popen[bytes]
        with self.log.path.open("a") as log, self._out.open("a") as out:  # several processes may write
            if command:
                self.process = subprocess.Popen(
                    [*host.prefix, *command, str(SCRIPT)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    env=variables,
                )
            else:
                self.process = Fork(_train, out=self._out, log=self.log.path, variables=variables, host=host)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines it printed after each step."""
        return [json.loads(line) for line in self._out.read_text().splitlines() if line.endswith("}")]

    def wait_for(self, ready: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until it has printed a line of this kind."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(map(ready, self.lines)):
            assert self.process.poll() is None, self.log.text
            assert time.monotonic() < deadline, self.log.text
            time.sleep(0.02)

    def end(self) -> list[dict[str, Any]]:
        """Wait until it exits, which must succeed; return the lines it printed."""
        assert self.process.wait(PATIENCE_S) == 0, self.log.text
        self.log.check()
        return self.lines

    def error(self) -> str:
        """Wait until it exits, which must fail; return the last line of its log."""
        assert self.process.wait(PATIENCE_S) != 0
        return self.log.text.rstrip().splitlines()[-1]


def _train() -> None:
    runpy.run_path(os.fspath(SCRIPT), run_name="__main__")


def assert_alike(*workers: list[dict[str, Any]]) -> None:
    """Check that all have the same bits after every step, and that sums have the expected contributors."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for lines in workers:
        for line in lines:
            by_step.setdefault(line["step"], []).append(line)
    for step, lines in by_step.items():
        for what in ("weights", "buffers"):
            assert len({line[what] for line in lines}) == 1, (what, step, lines)
        for line in lines:
            assert set(line["in_sum"]) <= set(line["members"])
            assert line["in_sum"] == lines[0]["in_sum"]
            assert line["mean"] == pytest.approx(sum(line["in_sum"]) / len(line["in_sum"]), abs=1e-6)


def steps_of(lines: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in lines]

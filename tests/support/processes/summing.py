"""Two ranks that sum until a test stops them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from support.processes.children import environment

SCRIPT = Path(__file__).parents[1] / "training/sum_until_told.py"
TIMEOUT_S = 100.0


class Summing:
    """The ranks, as a context manager.

    Args:
        folder: for the files they write.
        reducers: the reducers they are given; "-" lets them discover their own.
        ranks: number of ranks.
        prefix: words before their commands.
        variables: additional environment variables.
    """

    def __init__(
        self, folder: Path, reducers: str, ranks: int = 2, prefix: Sequence[str] = (), **variables: str
    ) -> None:
        self._folder = folder
        self._logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
        self._ranks = []
        for rank, path in enumerate(self._logs):
            command = [*prefix, sys.executable, str(SCRIPT), reducers, str(rank), str(ranks), str(folder)]
            with path.open("w") as log:
                self._ranks.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=environment(**variables))
                )

    @property
    def log(self) -> str:
        """Everything that the ranks logged."""
        return "\n".join(path.read_text() for path in self._logs)

    @property
    def steps(self) -> int:
        """Number of sums rank 0 has completed."""
        path = self._folder / "steps-0"
        return int(path.read_text() or 0) if path.exists() else 0

    def go_on(self, steps: int = 10) -> None:
        """Wait for more sums."""
        aim = self.steps + steps
        self.wait_for(lambda: self.steps >= aim, f"{aim} sums")

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for a condition while all ranks run."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert all(rank.poll() is None for rank in self._ranks), self.log
            assert time.monotonic() < deadline, f"no {what} after {TIMEOUT_S:g} s:\n{self.log}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Let all ranks finish; every sum of theirs must have been right."""
        (self._folder / "stop").touch()
        assert [rank.wait(TIMEOUT_S) for rank in self._ranks] == [0] * len(self._ranks), self.log

    def __enter__(self) -> Summing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()

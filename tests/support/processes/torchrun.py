"""`torchrun`, started as users start their scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.processes.children import environment
from support.processes.warm import warm


def torchrun(count: int, *, python: str | None = None, place: Sequence[str] = ("--standalone",)) -> list[str]:
    """Return the command that starts `count` ranks with a warm Python, unless another one is given."""
    return [python or warm(), "-m", "torch.distributed.run", *place, "--nproc-per-node", str(count)]


class Torchrun:
    """`torchrun` with `count` processes of a script, and all processes that they start.

    `place` is its node's position among others. `processes` finds them only if `python` is the real one.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        *arguments: str,
        place: Sequence[str] = ("--standalone",),
        python: str | None = None,
        **more: str,
    ) -> None:
        self.folder = folder
        self._mark = f"INTEGRATION_MARK={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self.log = folder / "torchrun.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*torchrun(count, python=python, place=place), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**{name: value}, **more),
            )

    def wait(self, timeout_s: float = 120.0) -> int:
        """Return the exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"torchrun is not done after {timeout_s:g} s:\n{self.log.read_text()[-5000:]}")

    @property
    def is_running(self) -> bool:
        """Whether torchrun itself is still running."""
        return self._process.poll() is None

    def processes(self) -> dict[int, str]:
        """Return the command lines of all running processes that inherited our variable INTEGRATION_MARK."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (
                            (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        )
                except OSError:
                    continue
        return found

    def kill(self) -> None:
        """Kill all that is left, whatever happened."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.is_running:
            self._process.terminate()
        self._process.wait(10)

"""Training runs with third-party frameworks; each test is skipped if its library is not installed.

`make test-integrations` installs them all into a separate environment, and runs these tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes.children import environment
from support.processes.reducers import Reducer
from support.processes.torchrun import Torchrun


@pytest.fixture
def reducer(tmp_path: Path) -> Iterator[Reducer]:
    one = Reducer(tmp_path)
    yield one
    one.kill()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a script of this folder, with torchrun or alone, and returns its output."""

    def run(name: str, *arguments: str, ranks: int = 2, **variables: str) -> str:
        path = str(Path(__file__).with_name(name))
        if ranks:
            launcher = Torchrun(tmp_path, ranks, path, *arguments, python=sys.executable, **variables)
            code, said = launcher.wait(), launcher.log.read_text()
        else:
            done = subprocess.run(
                [sys.executable, path, *arguments],
                env=environment(**variables),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=110,
            )
            code, said = done.returncode, done.stdout + done.stderr
        assert code == 0, said[-6000:]
        return said

    return run

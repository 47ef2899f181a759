"""Torch's own tests of an unknown backend, on three ranks; `make test-torch` runs them all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.children import environment

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)
def test_torchs_own_tests_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_suite", "--quick"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=390,
    )
    row = re.search(r"\| 3 \| as-is \| not run \| (\d+) passed, (\d+) failed, (\d+) skipped \|", done.stdout)
    assert row is not None, done.stdout + done.stderr
    passed, failed, _ = map(int, row.groups())
    assert failed == 0, done.stdout
    assert passed >= 68
    assert done.returncode == 0

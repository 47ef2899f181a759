"""The tools of Prometheus (Debian's package `prometheus` has both), and the harness of the integration tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.conftest import (  # noqa: F401
    _shared_ranks,
    _shared_reducers,
    free_port,
    job,
    ranks,
    reducers,
    serve,
    until,
)

DEPLOY = Path(__file__).parents[3] / "deploy"


def command(name: str) -> str:
    """Return the path of a command, or skip the test."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: apt-get install prometheus")
    return path


@pytest.fixture
def promtool() -> Callable[..., str]:
    """Return a function that runs promtool, which must succeed, and returns its output."""
    path = command("promtool")

    def run(*arguments: str, text: str | None = None) -> str:
        done = subprocess.run([path, *arguments], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def prometheus() -> str:
    """Return the path of the server."""
    return command("prometheus")

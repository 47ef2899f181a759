"""Shared helpers for the tests of `deploy/`: its files, and the tools in their own environment.

`make deploy-check` makes that environment, .venv-deploy. DEPLOY_ENVIRONMENT names another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from reduction.process.ready import NotReady, wait_until_ready
from support.processes.children import environment

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = Path(os.environ.get("DEPLOY_ENVIRONMENT", ROOT / ".venv-deploy")) / "bin"
TIMEOUT_S = 100


def documents(path: str) -> list[dict[str, Any]]:
    """Return the YAML documents of a file of `deploy/`."""
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def tool(name: str) -> str:
    """Return the path of a tool's command, or skip the test."""
    path = TOOLS / name
    if not path.exists():
        pytest.skip(f"{name} is not in {TOOLS.parent.name}: make deploy-check installs it")
    return str(path)


def in_tools(script: str, *needs: str, given: Any = None) -> Any:
    """Run Python in the tools' environment. Input `given` and the output are JSON. Skip if a module is missing."""
    python = tool("python")
    for module in needs:
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
            pytest.skip(f"the module {module} is not in {TOOLS.parent.name}: make deploy-check installs it")
    done = subprocess.run(
        [python, "-c", script],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=ROOT,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def checked_settings(words: list[str], **variables: str) -> dict[str, Any]:
    """Return the settings that `reducer serve --check` reads from an artefact's command and variables."""
    assert words[0] == "serve", words
    done = subprocess.run(
        [sys.executable, "-m", "reducer", *words, "--check"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(**variables),
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return tomllib.loads(done.stdout)


@contextmanager
def serving(
    command: Sequence[str], log: Path, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a reducer's command; yield the process and its listening address. The process is killed at the end."""
    with (
        log.open("a") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ
        ) as process,
    ):
        try:
            yield process, wait_until_ready(process, TIMEOUT_S)
        except NotReady as error:
            pytest.fail(f"{error}:\n{log.read_text()}")
        finally:
            process.kill()

"""The doctor's parts that need no torch, run as a separate program alongside this rank: `reducer doctor`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reduction.process.launch import reducer_command

from worker_plugin.config import PluginConfig

#: Time limit of an examination of the reducers, in seconds.
LOOK_S = 60.0


class LookFailed(Exception):
    """The program gave no answer; the text is its own message."""


def look(texts: Sequence[str], job: str, config: PluginConfig) -> dict[str, Any]:
    """Return this host's findings about the reducers without measuring bandwidth: a `Worker`, as JSON fields.

    Raises:
        LookFailed: a setting is wrong, or a name has no address.
    """
    options = [*texts, "--json", "--no-rates", "--job", job]
    if config.tls is not None:
        options += ["--tls-cert", config.tls.cert, "--tls-key", config.tls.key, "--tls-ca", config.tls.ca]
    if config.token_file is not None:
        options += ["--token-file", str(config.token_file)]
    try:
        done = _reducer_doctor(options, capture_output=True, timeout=LOOK_S)
        [worker] = json.loads(done.stdout)["facts"]["workers"]
    except subprocess.TimeoutExpired:
        raise LookFailed(f"looking at the reducers took more than {LOOK_S:g} s") from None
    except (ValueError, KeyError):
        said = done.stderr.strip().splitlines() or ["no answer"]
        raise LookFailed(said[-1].removeprefix("Error: ")) from None
    found: dict[str, Any] = worker
    return found


def judge(facts: Mapping[str, Any], options: Sequence[str]) -> int:
    """Print what is wrong, and return the exit code of `reducer doctor`."""
    return _reducer_doctor(["--facts", "-", *options], input=json.dumps(facts)).returncode


def _reducer_doctor(options: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    command, environment = reducer_command(Path(__file__).parents[2])
    return subprocess.run([*command, "doctor", *options], text=True, env=environment, check=False, **more)

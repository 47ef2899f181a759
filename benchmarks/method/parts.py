"""Run many benchmarks and tests with one command, each part as a separate process with a time limit.

Two files are written after each part, so an interrupted run keeps its results:

    NAME.json    the machine, and for each part: command, exit code, seconds, why another command or none ran, and the
                 JSON that it wrote
    NAME.txt     the output of the parts
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lab import environment

#: A part is not started with less time left than this, in seconds.
LEAST_S = 5.0
#: Time for a part that exceeded its limit to end its processes, in seconds.
END_S = 10.0
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Part:
    """A command for `python -m`."""

    name: str
    #: `{out}` stands for a folder for JSON files that are kept.
    command: str
    limit_s: float
    #: Requirements on the machine.
    needs: frozenset[str] = frozenset()
    #: Command that runs if a requirement is missing; None runs nothing.
    otherwise: str | None = None


@dataclass(slots=True)
class Outcome:
    """The outcome of a part."""

    #: None if nothing ran.
    command: str | None
    #: None if nothing ran, or not to its end.
    exit_code: int | None = None
    seconds: float = 0.0
    #: Why another command than planned, or none, ran, or why it did not run to its end.
    why: str | None = None
    #: Contents of the JSON files by name.
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The outcome on one line."""
        how = (
            "did not run"
            if self.command is None
            else f"exit code {self.exit_code} after {self.seconds:.0f} s"
        )
        return how if self.why is None else f"{how}: {self.why}"


class Parts:
    """Runner of parts, one after the other.

    Args:
        name: name of both files.
        folder: folder for the files, created if necessary.
        limit_s: time limit for all parts together.
    """

    def __init__(self, name: str, folder: Path, limit_s: float = float("inf")) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._json, self._text = folder / f"{name}.json", folder / f"{name}.txt"
        self._end = time.monotonic() + limit_s
        #: Requirements that the machine does not meet, with reasons.
        self.missing: dict[str, str] = {}
        #: Additional environment variables of the parts.
        self.variables: dict[str, str] = {}
        self.outcomes: dict[str, Outcome] = {}
        self._environment = environment.describe()
        self._text.write_text(environment.summary(self._environment) + "\n")

    def run(self, part: Part) -> Outcome:
        """Run a part, and write the results so far."""
        lacks = [f"{need}: {self.missing[need]}" for need in sorted(part.needs) if need in self.missing]
        outcome = Outcome(part.otherwise if lacks else part.command, why="; ".join(lacks) or None)
        left_s = self._end - time.monotonic()
        limit_s = min(part.limit_s, left_s)
        if outcome.command is not None and left_s < LEAST_S:
            outcome = Outcome(None, why="no time is left")
        with self._text.open("a") as text, tempfile.TemporaryDirectory() as out:
            text.write(f"\n=== {part.name}: {outcome.command or outcome.text}\n")
            text.flush()
            if outcome.command is not None:
                words = [word.format(out=out) for word in shlex.split(outcome.command)]
                began = time.monotonic()
                outcome.exit_code = self._run(words, text, limit_s)
                outcome.seconds = time.monotonic() - began
                if outcome.exit_code is None:
                    outcome.why = f"not done within {limit_s:.0f} s"
            outcome.results = {path.stem: _read(path) for path in sorted(Path(out).glob("*.json"))}
            text.write(f"=== {part.name}: {outcome.text}\n")
        self.outcomes[part.name] = outcome
        self._write()
        print(f"{part.name}: {outcome.text}", flush=True)
        return outcome

    def _run(self, words: Sequence[str], output: Any, limit_s: float) -> int | None:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | self.variables,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return None

    def _write(self) -> None:
        parts = {name: asdict(outcome) for name, outcome in self.outcomes.items()}
        document = {"environment": self._environment, "missing": self.missing, "parts": parts}
        whole = self._json.with_suffix(".new")
        whole.write_text(json.dumps(document, indent=1) + "\n")
        whole.replace(self._json)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        return f"no JSON: {error}"


def chosen(parts: Sequence[Part], names: str | None, parser: argparse.ArgumentParser) -> list[Part]:
    """Return the parts of a comma-separated option, or all. An unknown name is a command-line error."""
    known = {part.name: part for part in parts}
    wanted = list(known) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"--parts: {', '.join(unknown)} not among {', '.join(known)}")
    return [known[name] for name in wanted]

"""Strangers' connections cost a reducer a bounded memory peak, all of which is freed, and none of them gets in."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.children import environment
from support.processes.reducers import status_of

from benchmarks.micro.strangers import JOB, KINDS

#: Peak memory above an idle reducer's. 45 to 115 MiB were measured, and 1.5 to 3.6 GiB before there were limits.
PEAK_BYTES = 140 << 20
#: Memory above an idle reducer's 10 s after the strangers have disconnected. 2 to 8 MiB were measured.
LEFT_BYTES = 32 << 20
GIVE_BACK_S = 10.0


def memory(pid: int, name: str) -> int:
    """Return VmRSS, or VmHWM, its peak so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="of glibc")
@pytest.mark.parametrize(("guard", "waves"), [("a token", 6), ("nothing", 2)])
def test_a_flood_of_large_first_frames(serve, tmp_path, until, guard, waves):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("*:" + "t0ken" * 8 + "\n")
    reducer = serve(*(("--token-file", str(tokens)) if guard == "a token" else ()), "--log-level", "error")
    idle = memory(reducer.pid, "VmRSS")
    command = [sys.executable, "-m", "benchmarks.micro.strangers", "no-token", reducer.address]
    answers = subprocess.run(
        [*command, "--waves", str(waves)],
        check=True,
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(),
    ).stdout
    assert memory(reducer.pid, "VmHWM") < idle + PEAK_BYTES, answers
    until(
        lambda: memory(reducer.pid, "VmRSS") < idle + LEFT_BYTES, "the memory to be given back", GIVE_BACK_S
    )
    refused = "UNAUTHENTICATED=" if guard == "a token" else "INVALID_ARGUMENT="
    assert refused in answers
    assert "OK=" not in answers


def test_no_stranger_gets_in_or_stops_the_reducer(serve, tmp_path, free_port):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    theirs = "the1rs" * 6
    tokens.write_text(f"{JOB}:{theirs}\n*:{'0urs' * 8}\n")
    ports = ["--data-port", str(free_port()), "--metrics-port", str(free_port())]
    reducer = serve("--token-file", str(tokens), *ports)
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.micro.strangers", kind, reducer.address, *ports]
        done = subprocess.run(
            [*command, "--token", theirs, "--seconds", "0.2"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(),
        )
        ready, answers = done.stdout.splitlines()
        assert ready == "ready"
        assert "=" in answers, kind
        assert "OK=" not in answers, kind
    assert status_of(reducer.address, "--token-file", str(tokens))["jobs"] == []

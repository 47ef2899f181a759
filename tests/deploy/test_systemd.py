"""`deploy/systemd`: systemd's own verdict on the unit, and the reducer's system calls against its filter."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from reduction.process.ready import wait_until_ready
from support.artefacts import DEPLOY
from support.processes.children import environment

UNIT = DEPLOY / "systemd/reducer.service"
DROP_IN = DEPLOY / "systemd/reducer.service.d/token.conf"
#: systemd's scale runs from 0, a service that may do nothing, to 10.
EXPOSURE_MAX = 2.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is missing")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Return the unit and its drop-in, with this environment's `reducer`."""
    reducer = Path(sys.executable).with_name("reducer")
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace("/opt/reducer/bin/reducer", str(reducer)))
    shutil.copytree(DROP_IN.parent, tmp_path / DROP_IN.parent.name)
    return tmp_path


def analyze(units: Path, *words: str) -> str:
    # The colon keeps systemd's own folders in the path.
    environ = os.environ | {"SYSTEMD_UNIT_PATH": f"{units}:", "SYSTEMD_COLORS": "0"}
    command = ["systemd-analyze", "--no-pager", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def sections(path: Path) -> dict[str, list[str]]:
    """Return the values of a unit file by name."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@needs_systemd
def test_systemd_accepts_the_unit(units: Path) -> None:
    assert analyze(units, "verify", UNIT.name) == ""


@needs_systemd
def test_a_misspelled_line_is_reported(units: Path) -> None:
    path = units / UNIT.name
    path.write_text(path.read_text().replace("NoNewPrivileges", "NoNewPrivilege"))
    assert "NoNewPrivilege" in analyze(units, "verify", UNIT.name)


@needs_systemd
def test_the_exposure_of_the_service_is_low(units: Path) -> None:
    text = analyze(units, "security", "--offline=yes", str(units / UNIT.name))
    [rated] = re.findall(r"Overall exposure level for \S+: (\S+)", text)
    assert float(rated) <= EXPOSURE_MAX


def test_the_stop_timeout_exceeds_the_drain_timeout() -> None:
    from reducer.config import DRAIN_TIMEOUT_S

    [seconds] = sections(UNIT)["TimeoutStopSec"]
    assert int(seconds) >= DRAIN_TIMEOUT_S + 10


def test_it_is_restarted_forever() -> None:
    values = sections(UNIT)
    assert values["Restart"] == ["always"]
    assert values["StartLimitIntervalSec"] == ["0"]
    [pause_s] = values["RestartSec"]
    assert 1 < int(pause_s) < 10


@needs_systemd
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
def test_a_reducer_makes_only_the_system_calls_that_the_unit_allows(tmp_path: Path, units: Path) -> None:
    groups = sections(UNIT)["SystemCallFilter"]
    allowed, refused = groups[0].split(), groups[1].removeprefix("~").split()
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-o", str(trace), sys.executable, "-m", "reducer", "serve"]
    with subprocess.Popen(
        [*command, "--bind", "127.0.0.1:0", "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as process:
        wait_until_ready(process, 60)
        first = int(trace.read_text().split(maxsplit=1)[0])
        os.kill(first, signal.SIGTERM)
        assert process.wait(60) == 0
    made = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.MULTILINE))
    assert {"execve", "bind", "sendmsg"} & made
    assert made <= calls(units, allowed) - calls(units, refused)


def calls(units: Path, groups: list[str]) -> set[str]:
    """Return the system calls of groups such as @system-service, and of the groups in them."""
    found: set[str] = set()
    for line in analyze(units, "syscall-filter", *groups).splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= calls(units, [word]) if word not in groups else set()
        elif re.fullmatch(r"\w+", word):
            found.add(word)
    return found

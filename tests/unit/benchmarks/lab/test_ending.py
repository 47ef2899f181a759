"""A benchmark that is terminated cleans up everything it has built, even if the signal arrives twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.nccl_ranks import GpuMissing
from benchmarks.lab.ending import MISSING, ending_well
from benchmarks.lab.network import NetworkUnavailable, check_network
from benchmarks.lab.ranks import RanksFailed

ROOT = Path(__file__).parents[4]

BODY = """
import time
from benchmarks.lab.ending import ending_well

with ending_well("tool"):
    try:
        print("built", flush=True)
        time.sleep(60)
    finally:
        print("leaving", flush=True)
        input()  # cleaning up takes its time
        print("clean", flush=True)
"""


def test_a_failure_is_reported_in_one_line() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as found, ending_well("tool"):
        raise RanksFailed("rank 1 died")
    assert found.value.code == "tool: rank 1 died"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("missing", [NetworkUnavailable("no root"), GpuMissing("no GPU")])
def test_missing_prerequisites_are_reported(missing: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found, ending_well("tool"):
        raise missing
    assert found.value.code == MISSING
    assert capsys.readouterr().err == f"tool: {missing}\n"


def test_ctrl_c_exits_with_130() -> None:
    with pytest.raises(SystemExit) as found, ending_well("tool"):
        raise KeyboardInterrupt
    assert found.value.code == 130


def test_a_second_sigterm_does_not_interrupt_the_cleanup() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BODY], text=True, cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "built\n"
            process.terminate()
            assert process.stdout.readline() == "leaving\n"
            process.terminate()
            assert process.communicate("\n", timeout=30)[0] == "clean\n"
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tool", ["", ".hierarchy", ".hierarchy --train", ".wires", ".time_to_loss"])
def test_no_host_is_left_behind(tool: str, tmp_path: Path) -> None:
    """Signals arrive as from timeout(1), to the process and then to its group, while its processes start."""
    try:
        check_network()
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    name, *options = tool.split(" ")
    command = [sys.executable, "-m", f"benchmarks.shaped{name}", *options]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while len(hosts := _hosts(process.pid)) < 9 and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        assert len(hosts) == 9, hosts  # four of each kind, and the switch
        time.sleep(3)  # during the start of the ranks or their first turns; any moment is fine
        process.terminate()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(100)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signal.SIGTERM, (tmp_path / "log").read_text()
    assert _hosts(process.pid) == []


def _hosts(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"reduction-bench-{pid}-*")]

"""`reducer top` on a real terminal, tmux, together with a real job."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.children import environment
from support.processes.reducers import looked_at
from support.training.checked import train_until_told


class Terminal:
    """A tmux server for one test, with one window."""

    def __init__(self, command: list[str], width: int, height: int) -> None:
        self._tmux = ["tmux", "-L", f"reducer-top-{uuid.uuid4().hex[:8]}", "-f", "/dev/null"]
        # The window's size must count, not the variables exported by parallel pytest. The shell outlives the command,
        # so that the final screen can be read.
        line = f"unset COLUMNS LINES; {shlex.join(command)}; echo ended with $?; exec cat"
        size = ["-x", str(width), "-y", str(height)]
        subprocess.run(
            [*self._tmux, "new-session", "-d", *size, line],
            env=environment(TERM="screen"),
            check=True,
            timeout=20,
        )

    def text(self, *options: str) -> str:
        """Return the text on the screen."""
        return self._run("capture-pane", "-p", *options)

    def keys(self, *keys: str) -> None:
        """Type keys."""
        self._run("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        """Resize the window."""
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def close(self) -> None:
        """End the server and its command."""
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True, timeout=20)

    def _run(self, *arguments: str) -> str:
        command = [*self._tmux, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout


def top(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "reducer", "top", *arguments]


@pytest.fixture
def terminal() -> Iterator:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    opened: list[Terminal] = []

    def one(*arguments: str, width: int = 80, height: int = 24) -> Terminal:
        opened.append(Terminal(top(*arguments), width, height))
        return opened[-1]

    yield one
    for window in opened:
        window.close()


def row(text: str, name: str) -> str:
    """Return the line of a table that starts with a name."""
    return next((line for line in text.splitlines() if line.startswith(name)), "")


def test_a_live_job_a_dying_reducer_and_the_quit_key(
    ranks, serve, free_port, terminal, until, tmp_path: Path
):
    stays, goes = serve(), serve(bind=f"127.0.0.1:{free_port()}")
    call = ranks.begin(2, train_until_told, [stays.address, goes.address], "resnet", {})
    call.hear(0)
    screen = terminal(stays.address, goes.address, "--interval", "0.3")

    def shows(*patterns: str, name: str = "") -> str:
        """Return the screen if the named row, or the screen without a name, matches all patterns."""
        text = screen.text()
        where = row(text, name) if name else text
        return text if where and all(re.search(pattern, where) for pattern in patterns) else ""

    # The job: 2 ranks, epoch 1, sums per second, payload, waits, plane.
    columns = r"2/2 +1 +[1-9][\d.]* +[\d.]+ [kM]B +[\d.]+/[\d.]+ +\S.* shared"
    text = until(lambda: shows(columns, name="resnet"), "the job's row")
    assert max(map(len, text.splitlines())) <= 80
    row_of_reducer = r"serving +\d+ % +\d+\.\d MiB +2 +[\d.]+ [kM]B"
    for reducer in (stays, goes):  # one of them may have been polled just before the job joined
        text = until(lambda reducer=reducer: shows(row_of_reducer, name=reducer.address), "a reducer's row")
    assert re.search(r"joined +resnet: rank 1 of 2 joined from .* 2 processes", text)
    assert re.search(r"epoch +resnet: membership epoch 1 started with 2 ranks", text)
    assert "q quits" in text.splitlines()[0]

    goes.kill()
    until(lambda: shows("no answer", name=goes.address), "the dead reducer")
    # It reports why the first failed poll got nothing: a poll in progress ends differently from a later one.
    until(lambda: shows(r"silent +no answer: \S"), "the event of its silence")
    text = until(lambda: shows("epoch +resnet: membership epoch 2 started"), "the next epoch")
    assert "serving" in row(text, stays.address)
    until(lambda: shows(r"2/2 +2 +[1-9]", name="resnet"), "the job, which goes on")

    serve(bind=goes.address)
    until(lambda: shows("serving", name=goes.address), "the reducer, which is back")
    until(lambda: shows(r"back +answers again"), "the event of its return")
    until(lambda: shows("epoch +resnet: membership epoch 3 started"), "the epoch with both")

    screen.resize(150, 30)
    until(lambda: shows("busiest", "resident", "for it"), "more columns")
    screen.resize(80, 24)
    until(lambda: not shows("busiest"), "fewer columns")

    screen.keys("x")  # has no function
    until(lambda: shows("q quits"), "the view")
    screen.keys("q")
    until(lambda: shows("ended with 0"), "the end")
    assert "streams" not in screen.text(), "the screen is again as it was"
    call.tell(0, 1)
    call.answers()


def test_it_ends_with_ctrl_c(serve, terminal, until):
    screen = terminal(serve().address)
    until(lambda: "no jobs" in screen.text(), "the view")
    screen.keys("C-c")
    until(lambda: "ended with 0" in screen.text(), "the end")


def test_the_view_stays_open_without_an_answer(serve, free_port, terminal, until):
    bind = f"127.0.0.1:{free_port()}"
    screen = terminal(bind)
    until(lambda: "no answer" in row(screen.text(), bind), "the silent reducer")
    serve(bind=bind)
    until(lambda: "serving" in row(screen.text(), bind), "the reducer")


def test_colors_are_readable_on_light_and_dark(serve, free_port, terminal, until):
    silent = f"127.0.0.1:{free_port()}"
    screen = terminal(serve().address, silent)
    until(lambda: "no answer" in row(screen.text(), silent), "both rows")
    codes = set(re.findall(r"\x1b\[([\d;]*)m", screen.text("-e")))
    numbers = {number for code in codes for number in code.split(";")}
    assert {"31", "32"} <= numbers, "red and green"
    assert not numbers & {"30", "33", "34", "37", "40", "41", "42", "43", "44", "47"}


def test_once_prints_plain_text(ranks, serve, free_port, job):
    reducer, silent = serve("--processes", "2"), f"127.0.0.1:{free_port()}"
    call = ranks.begin(2, train_until_told, [reducer.address], job, {})
    call.hear(0)
    ended = subprocess.run(top("--once", reducer.address), capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    assert row(ended.stdout, reducer.address).split()[1] == "serving"
    assert re.search(r"2/2 +1 +[1-9]", row(ended.stdout, job)), ended.stdout
    call.tell(0, 1)
    call.answers()
    ended = subprocess.run(top("--once", silent), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4
    assert f"no answer from {silent}" in ended.stderr


def test_the_status_has_planes_cpu_time_and_events(ranks, serve, job, plane):
    reducer = serve()
    call = ranks.begin(2, train_until_told, [reducer.address], job, {})
    call.hear(0)
    call.hear(0)
    [process] = looked_at(reducer.address)["processes"]
    call.tell(0, 1)
    call.answers()
    where = "shared" if plane == "auto" else plane
    assert process["jobs"][0]["planes"] == {"grpc": 0, "tcp": 0, "shared": 0} | {where: 2}
    assert process["cpu_seconds"] > 0.0
    assert 10 << 20 < process["resident_bytes"] < 10 << 30
    assert [event["kind"] for event in process["events"]] == ["joined", "joined", "epoch"]
    [after] = looked_at(reducer.address)["processes"]
    assert after["events"][-1]["kind"] == "ended"
    assert after["cpu_seconds"] > process["cpu_seconds"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "nonsense"),
        (["--interval", "0", "50051"], "0.1<=x<=3600"),
        (["--token-file", "/nowhere", "50051"], "/nowhere"),
    ],
)
def test_wrong_usage_is_reported_at_once(arguments, text):
    ended = subprocess.run(top(*arguments), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert text in ended.stderr

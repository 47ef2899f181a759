"""A parent waits for the line of `reducer serve`. Anything else is reported to it, and nothing is left behind."""

import subprocess
import sys
import time

import pytest
from reduction.process.ready import NotReady, close, ready_address, ready_line, wait_until_ready

SERVES = "print('listening on 127.0.0.1:5', flush=True); import sys; sys.stdin.read()"


def python(code, stdin=subprocess.PIPE):
    command = [sys.executable, "-S", "-c", code]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True)


def test_the_line_that_one_side_prints_is_the_line_that_the_other_reads():
    assert ready_address(ready_line("[::1]:50051") + "\n") == "[::1]:50051"


@pytest.mark.parametrize("line", ["", "\n", "Listening on 1:2", "a warning: listening on 1:2"])
def test_other_lines_have_no_address(line):
    assert ready_address(line) is None


def test_a_process_that_serves_goes_on_until_its_stdin_is_closed():
    process = python(SERVES)
    assert wait_until_ready(process, 30) == "127.0.0.1:5"
    assert process.poll() is None
    close(process, 30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit(3)", "it ended with exit code 3"),
        ("print('a banner', flush=True); import time; time.sleep(60)", r"its first line was 'a banner\\n'"),
        ("import time; time.sleep(60)", "it did not listen within 0.5 s"),
    ],
    ids=["ends", "says something else", "says nothing"],
)
def test_a_process_that_does_not_serve_is_reported_and_cleaned_up(code, reason):
    process = python(code)
    with pytest.raises(NotReady, match=reason):
        wait_until_ready(process, 0.5 if "within" in reason else 30)
    assert process.returncode is not None
    assert process.stdin.closed
    assert process.stdout.closed


STAYS = SERVES.replace("sys.stdin.read()", "import time; time.sleep(60)")


def test_a_process_without_a_stdin_pipe_must_be_terminated_first():
    process = python(STAYS, stdin=subprocess.DEVNULL)
    wait_until_ready(process, 30)
    process.terminate()
    close(process, 30)
    assert process.returncode == -15


def test_a_process_that_does_not_end_is_killed():
    process = python(STAYS)
    wait_until_ready(process, 30)
    before = time.monotonic()
    close(process, 0.2)
    assert process.returncode == -9
    assert time.monotonic() - before >= 0.2

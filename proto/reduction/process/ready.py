"""The line that `reducer serve` prints on stdout when it serves; a parent waits for it and for the end."""

from __future__ import annotations

import contextlib
import selectors
import subprocess

_BEGINNING = "listening on "


class NotReady(Exception):
    """A reducer process ended, printed another line, or printed nothing in time; the message says which."""


def ready_line(address: str) -> str:
    """Return the line, without its end, of a reducer that serves HOST:PORT."""
    return f"{_BEGINNING}{address}"


def ready_address(line: str) -> str | None:
    """Return HOST:PORT of a ready line, or None for any other line."""
    return line.removeprefix(_BEGINNING).strip() if line.startswith(_BEGINNING) else None


def wait_until_ready(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Wait until a reducer serves, and return its HOST:PORT. Kill the process if it does not.

    Args:
        process: `reducer serve`, whose stdout is a pipe. Its log is on its stderr.
        timeout_s: timeout in seconds.

    Raises:
        NotReady: the process does not serve.
    """
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:  # select.select refuses descriptors above 1023
        selector.register(process.stdout, selectors.EVENT_READ)
        is_there = bool(selector.select(timeout_s))
    line = process.stdout.readline() if is_there else ""
    if (address := ready_address(line)) is not None:
        return address
    if line:
        reason = f"its first line was {line!r}"
    elif is_there:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # its stdout is closed already
        reason = f"it ended with exit code {process.poll()}"
    else:
        reason = f"it did not listen within {timeout_s:g} s"
    process.kill()
    close(process, 0.0)
    raise NotReady(f"a reducer did not start: {reason}; its own message is on stderr")


def close(process: subprocess.Popen[str], timeout_s: float) -> None:
    """Close a reducer's pipes, wait for its end, and kill it if that takes too long.

    A reducer with `--stop-with-stdin` ends because its stdin is closed. Any other must already have been told to end.

    Args:
        process: `reducer serve`.
        timeout_s: timeout for its end, in seconds.
    """
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

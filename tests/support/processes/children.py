"""The environment and log of all child processes of the integration tests. The log must show no bug."""

from __future__ import annotations

import os
from pathlib import Path

#: Text that shows a bug. No process of ours may log it, whatever happens to the process.
OUR_BUGS = ("Traceback", "never retrieved", "level=ERROR", "Fatal Python error", "terminate called")
#: Maximum time for a process to start or end, in seconds.
START_S = 30.0


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a child: none of the caller's settings, its own run, and loopback only."""
    ours = ("REDUCTION_", "REDUCER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "REDUCTION_RUN": f"tests-{os.getpid()}"}
    return kept | defaults | more


def state_of(pid: int) -> str:
    """Return the letter of a process's state: T is stopped, Z ended but not yet waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, in order of their start."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return state_of(pid) == "Z"
    except OSError:
        return True


class Log:
    """A process's stderr in a file; reports new lines that show a bug of ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked = 0
        self._is_spared = False

    @property
    def text(self) -> str:
        """Everything written so far."""
        return self.path.read_text(errors="replace")

    def spare(self) -> None:
        """Accept everything from now on, because the process will be killed and its children will then log errors."""
        self._is_spared = True

    def check(self) -> None:
        """Fail if a new line shows a bug."""
        if self._is_spared:
            return
        text = self.text
        new, self._checked = text[self._checked :], len(text)
        found = [mark for mark in OUR_BUGS if mark in new]
        assert not found, f"{self.path.name} shows {found}:\n{new[-6000:]}"

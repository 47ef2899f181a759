"""How either side starts a reducer process: of the same code, and with nobody else's.

`python -m reducer` would import from the working directory first, and PYTHONPATH comes before the installed packages:
a user's `click.py` or `grpc.py` would run in our process, or end it. So it is started by its path, without PYTHONPATH;
what that had comes last in the process's `sys.path` (`reducer/__main__.py`), for packages that are nowhere else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: Folders for the end of the process's `sys.path`; the first is the one that has this package.
VARIABLE = "REDUCTION_START_PATH"


def reducer_command(folder: str | os.PathLike[str]) -> tuple[list[str], dict[str, str]]:
    """Return the beginning of a command, up to the name of the subcommand, and its environment.

    Args:
        folder: what the package `reducer` is in.
    """
    ours = [str(Path(__file__).resolve().parents[2]), os.path.abspath(folder)]
    handed = _entries(os.environ.get(VARIABLE, "")) + _entries(os.environ.get("PYTHONPATH", ""))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment[VARIABLE] = os.pathsep.join(dict.fromkeys(ours + handed))
    return [sys.executable, "-P", os.path.join(ours[1], "reducer", "__main__.py")], environment


def _entries(path: str) -> list[str]:
    """Return the folders of a search path, but not the working directory, which an empty entry stands for too."""
    folders = [os.path.abspath(entry) for entry in path.split(os.pathsep) if entry]
    return [folder for folder in folders if os.path.realpath(folder) != os.path.realpath(os.curdir)]

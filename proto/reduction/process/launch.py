"""Start reducers and the I/O processes of ranks with our code and the installed packages.

`python -m reducer` would import from the working directory first, and PYTHONPATH precedes the
installed packages. A user's `click.py` or `grpc.py` would then run in our process, or end it. So the
process is started by its path and without PYTHONPATH. The folders of PYTHONPATH come last in its
`sys.path` (`reducer/__main__.py`), for packages that are found nowhere else.

A reducer that we start takes its settings only from its command line. The variables REDUCER_<OPTION>
and a service manager's NOTIFY_SOCKET are for the process that an operator starts.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: Name of the environment variable with the folders for the end of the process's `sys.path`. The
#: first folder is the one with this package.
VARIABLE = "REDUCTION_START_PATH"
#: Prefix of the variables that are options of `reducer serve`.
SETTINGS_PREFIX = "REDUCER_"


def reducer_command(
    folder: str | os.PathLike[str], *, with_settings: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Return the beginning of a command, up to the name of the subcommand, and its environment.

    Args:
        folder: the folder with the package `reducer`.
        with_settings: whether the operator's variables apply, because the process replaces one that the
            operator started.
    """
    path = os.path.join("reducer", "__main__.py")
    if with_settings:
        return _command(folder, path)
    return _command(folder, path, ("NOTIFY_SOCKET",), SETTINGS_PREFIX)


def io_process_command(folder: str | os.PathLike[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command of a rank's I/O process, and its environment.

    Args:
        folder: the folder with the package `worker_plugin`.
    """
    # With this variable the process would also patch its own torch.
    return _command(folder, os.path.join("worker_plugin", "io_process", "__main__.py"), ("REDUCTION_AUTO",))


def _command(
    folder: str | os.PathLike[str], path: str, dropped: Sequence[str] = (), prefix: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return a command that runs a file by its path in a folder, and our environment without some variables."""
    ours = [str(Path(__file__).resolve().parents[2]), os.path.abspath(folder)]
    handed = _entries(os.environ.get(VARIABLE, "")) + _entries(os.environ.get("PYTHONPATH", ""))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", *dropped) and not (prefix and name.startswith(prefix))
    }
    environment[VARIABLE] = os.pathsep.join(dict.fromkeys(ours + handed))
    return [sys.executable, "-P", os.path.join(ours[1], path)], environment


def start_reducer(
    folder: str | os.PathLike[str], options: Sequence[str], token: str
) -> subprocess.Popen[str]:
    """Start `reducer serve` as a child that ends when its stdin closes, however this process ends.

    `ready.wait_until_ready` waits for it. Ctrl-C in a terminal does not reach it.

    Args:
        folder: the folder with the package `reducer`.
        options: options of `serve`.
        token: token that every job must show. It is passed through a pipe, because all users of the machine can
            see a command line.
    """
    command, environment = reducer_command(folder)
    first, writing = os.pipe()
    with open(first, "rb"):
        # If this process has no standard streams, the pipe has their numbers, which the child's streams get.
        reading = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 3)
    with open(reading, "rb"):
        # Close the writing end before a child inherits it, or the reader would wait for more.
        with open(writing, "w") as file:
            file.write(f"*:{token}\n")
        return subprocess.Popen(
            [*command, "serve", *options, "--stop-with-stdin", "--token-file", f"/dev/fd/{reading}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            pass_fds=(reading,),
        )


def _entries(path: str) -> list[str]:
    """Return the folders of a search path except the working directory, which an empty entry also means."""
    folders = [os.path.abspath(entry) for entry in path.split(os.pathsep) if entry]
    return [folder for folder in folders if os.path.realpath(folder) != os.path.realpath(os.curdir)]

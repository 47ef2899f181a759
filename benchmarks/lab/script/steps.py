"""Record in a script's own processes when its optimizers step, without changing the script.

At the end of `import torch`, torch calls every entry point of the group "torch.backends". `install` creates
a folder for PYTHONPATH with such an entry point: a copy of this file, which therefore imports none of our
modules, and metadata that names `record` in it. A process with the variable FOLDER writes a line to its own
file there after each `step()` of an optimizer of torch.optim. The line has the optimizer, and the seconds of
a clock that all processes share.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

#: The environment variable that names the folder for the records.
FOLDER = "LAB_STEPS_FOLDER"
#: How long a process waits at its end. A thread of Gloo releases the last all-reduce shortly after the script has its
#: result. If Python is shutting down by then, the process aborts (torch 2.13; see pytorch/pytorch#179291). On slow
#: links and busy cores one in 40 did.
_LET_GO_S = 0.5
_NAME = "reduction_lab_steps"


def install(folder: Path) -> None:
    """Create a folder that makes processes with it on PYTHONPATH call `record`."""
    metadata = folder / f"{_NAME}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[torch.backends]\n{_NAME} = {_NAME}:record\n")
    shutil.copy(__file__, folder / f"{_NAME}.py")


def record() -> None:
    """Record all steps of this process from now on, if FOLDER is set."""
    if FOLDER in os.environ:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_Recorder(Path(os.environ[FOLDER])))


class _Recorder:
    """Hook that writes a line for each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Opened at the first step, which launchers and data loaders never take.
        self._file: TextIO | None = None

    def __call__(self, optimizer: object, arguments: Any, named: Any) -> None:
        if self._file is None:
            client = sys.modules.get("worker_plugin.client")
            if "REDUCTION_AUTO" not in os.environ and client is not None and client.has_started():
                raise RuntimeError(
                    "this script uses reducers by itself, so nothing shows how fast it is without them: take out its "
                    '`attach`, hook or backend "reduction"; in its turns with reducers the lab sets REDUCTION_AUTO'
                )
            self._file = (self._folder / str(os.getpid())).open("w", buffering=1)
            atexit.register(time.sleep, _LET_GO_S)
        self._file.write(f"{id(optimizer)} {time.perf_counter()!r}\n")


def intervals(folder: Path, warmup: int) -> list[list[float]]:
    """Return the seconds between the steps of each process that has recorded any.

    If a process has several optimizers, the one with the most steps counts.

    Args:
        folder: folder with the records.
        warmup: the first interval begins at the end of the step after this many.
    """
    found = []
    for file in sorted(folder.iterdir()):
        lines = [line.split() for line in file.read_text().splitlines()]
        ((most, _),) = Counter(optimizer for optimizer, _ in lines).most_common(1)
        times = [float(at) for optimizer, at in lines if optimizer == most]
        found.append([end - begin for begin, end in pairwise(times[warmup:])])
    return found

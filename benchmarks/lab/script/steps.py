"""When the optimizers of a script have stepped, as the script's own processes record it; the script needs no change.

At the end of `import torch`, torch calls every entry point of the group "torch.backends". `install` makes
a folder for PYTHONPATH with such an entry point: a copy of this file, which therefore imports nothing of ours,
and the metadata that name `record` in it. A process that sees the variable FOLDER writes a line into a file
of its own there after each `step()` of an optimizer of torch.optim: which optimizer, and the seconds of a
clock that all processes share.
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
#: How long a process waits at its end. A thread of Gloo lets go of the last all-reduce a moment after the script has
#: its result; where Python is ending by then, the process aborts (torch 2.13; pytorch/pytorch#179291 has the story).
#: On slow links and busy cores one of 40 did.
_LET_GO_S = 0.5
_NAME = "reduction_lab_steps"


def install(folder: Path) -> None:
    """Make a folder that has processes with it on PYTHONPATH call `record`."""
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
    """Writes a line for each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Made at the first step, which launchers and loaders of data never take.
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

    Args:
        folder: where they have recorded.
        warmup: the first interval begins at the end of the step after this many. Of several optimizers in a process
            that one counts which has stepped most often.
    """
    found = []
    for file in sorted(folder.iterdir()):
        lines = [line.split() for line in file.read_text().splitlines()]
        ((most, _),) = Counter(optimizer for optimizer, _ in lines).most_common(1)
        times = [float(at) for optimizer, at in lines if optimizer == most]
        found.append([end - begin for begin, end in pairwise(times[warmup:])])
    return found

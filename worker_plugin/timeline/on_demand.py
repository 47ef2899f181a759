"""Makes a rank write its record while the job runs, whenever the file `now` in the directory is touched.

A signal would not work: Python handles signals on the main thread only, and that is the one that waits
forever when a job hangs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from worker_plugin.timeline.recorder import Recorder

#: The file's name.
NAME = "now"
#: Pause between two checks of the file, in seconds.
LOOK_S = 1.0


async def watch(recorder: Recorder, directory: str) -> None:
    """Write the record whenever the file is new or its time has changed, until cancelled.

    The directory may be on a slow network, so a separate thread checks it.
    """
    path = Path(directory, NAME)
    seen = await asyncio.to_thread(_changed_at, path)
    while True:
        await asyncio.sleep(LOOK_S)
        changed_at = await asyncio.to_thread(_changed_at, path)
        if changed_at not in (None, seen):
            seen = changed_at
            await asyncio.to_thread(recorder.save)


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None

"""Has a rank write its record while the job runs: whenever somebody touches the file `now` in the directory.

A signal would not do: Python handles signals on the main thread only, and that is the one that waits
for ever when a job hangs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from worker_plugin.timeline.recorder import Recorder

#: The file's name.
NAME = "now"
#: Pause between two looks at the file, in seconds.
LOOK_S = 1.0


async def watch(recorder: Recorder, directory: str) -> None:
    """Write the record whenever the file is new or its time has changed, until cancelled.

    The directory may be on a slow network, so it is looked at on a thread.
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

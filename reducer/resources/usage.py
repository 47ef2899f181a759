"""Resource usage of this process."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STATM = Path("/proc/self/statm")


def cpu_seconds() -> float:
    """Return the CPU time of this process, user and system, over all of its threads."""
    return time.process_time()


def resident_bytes(statm: Path = _STATM) -> int:
    """Return the resident memory of this process, including shared memory. 0 without /proc."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0

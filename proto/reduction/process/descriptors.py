"""How many file descriptors this process has and may have.

Shells and services start processes with a limit of 1024 or less, which a process may raise.
"""

from __future__ import annotations

import os
import resource


def in_use() -> int:
    """Return how many descriptors are open. If none is left to count with, return the limit."""
    try:
        return len(os.listdir("/dev/fd"))  # on Linux a link to /proc/self/fd
    except FileNotFoundError:
        return 0
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow(count: int) -> int:
    """Raise the limit to `count` descriptors, as far as the hard limit allows.

    Returns:
        How many of `count` are allowed now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has another limit, which getrlimit does not show
        return soft
    return wanted

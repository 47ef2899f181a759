"""Number and limit of this process's file descriptors.

Shells and services start processes with a limit of 1024 or less, which a process may raise.
"""

from __future__ import annotations

import os
import resource


def in_use() -> int:
    """Return the number of open descriptors, or the limit if none is free for counting."""
    try:
        return len(os.listdir("/dev/fd"))  # on Linux a link to /proc/self/fd
    except FileNotFoundError:
        return 0
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow(count: int) -> int:
    """Raise the limit to `count` descriptors, as far as the hard limit allows.

    Returns:
        The number of `count` that are now allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has another limit that getrlimit does not show
        return soft
    return wanted

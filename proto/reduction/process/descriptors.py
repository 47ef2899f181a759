"""How many descriptors this process may have: shells and services begin with 1024 or less, and it may ask for more."""

from __future__ import annotations

import os
import resource


def in_use() -> int:
    """Return how many are open; all that may be if there is none left to look with."""
    try:
        return len(os.listdir("/dev/fd"))  # on Linux a link to /proc/self/fd
    except FileNotFoundError:
        return 0
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow(count: int) -> int:
    """Have at least `count` be allowed, as far as the hard limit lets us; return how many of them are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has one more limit, which it does not tell here
        return soft
    return wanted

"""Reports at the first import of `worker_plugin` whether torch, an extra, is missing or too old."""

import re

#: The oldest supported torch, as (major, minor). The `torch` extra in pyproject.toml requires the same.
OLDEST = (2, 8)
#: The first version in which a process group's backend can be written in Python (process_group/groups.py).
WITH_BACKENDS = (2, 14)
INSTALL = 'pip install "reduction-server[torch]"'


def require_torch() -> None:
    """Return if torch can be imported and is not too old.

    Raises:
        ImportError: torch is missing or too old; the message says what to install.
    """
    oldest = ".".join(map(str, OLDEST))
    try:
        import torch
    except ModuleNotFoundError as error:
        # If torch itself lacks a module, its own message best says which.
        if error.name != "torch":
            raise
        message = f"worker_plugin needs torch {oldest} or newer, but torch is not installed: {INSTALL}"
        raise ImportError(message, name="torch") from None
    if is_too_old(torch.__version__):
        raise ImportError(
            f"worker_plugin needs torch {oldest} or newer, but found {torch.__version__}: {INSTALL}",
            name="torch",
        )


def is_too_old(version: str, oldest: tuple[int, int] = OLDEST) -> bool:
    """Return whether a version is older, comparing major and minor version only.

    By packaging rules 2.8.0a0+nv25.06 is older than 2.8, but vendors give such names to their builds of 2.8. A
    version that does not begin with two numbers is a private build, and counts as new enough.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest

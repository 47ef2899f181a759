"""Torch is an extra of the distribution: who has none, or one that is too old, is told so at the first import."""

import re

#: The oldest torch, as (major, minor); pyproject.toml has it too, in the extra `torch`.
OLDEST = (2, 8)
INSTALL = 'pip install "reduction-server[torch]"'


def require_torch() -> None:
    """Return if torch can be imported and is not too old.

    Raises:
        ImportError: it is not there, or is too old; the message says what to install.
    """
    oldest = ".".join(map(str, OLDEST))
    try:
        import torch
    except ModuleNotFoundError as error:
        # A torch that lacks something of its own says better itself what that is.
        if error.name != "torch":
            raise
        message = f"worker_plugin needs torch {oldest} or newer, and there is none here: {INSTALL}"
        raise ImportError(message, name="torch") from None
    if is_too_old(torch.__version__):
        raise ImportError(
            f"worker_plugin needs torch {oldest} or newer, and here is {torch.__version__}: {INSTALL}",
            name="torch",
        )


def is_too_old(version: str) -> bool:
    """Compare major and minor version only.

    By the rules of packages 2.8.0a0+nv25.06 comes before 2.8, but vendors name by it what they
    build of 2.8. A version that does not begin with two numbers is somebody's own build, and is
    taken as new enough.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST

"""Settings in environment variables REDUCTION_<NAME>, and names that were probably mistyped."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from reduction.process.variables import unknown

log = logging.getLogger(__name__)

PREFIX = "REDUCTION_"
#: Variables with our prefix that are not settings of a state. The first makes DDP modules attach
#: themselves (integrations/auto.py). The second sets how much is logged (process/log_setup.py). The
#: third tells a child process where to find its packages (`reduction.process.launch`).
OTHERS = ("REDUCTION_AUTO", "REDUCTION_LOG", "REDUCTION_START_PATH")
#: Variables that this process has warned about.
_warned: set[str] = set()


def variable(name: str) -> str:
    """Return the variable of a setting."""
    return PREFIX + name.upper()


def warn_of_unknown(names: Collection[str], environ: Mapping[str, str]) -> None:
    """Warn about variables that look like settings but are not, once per process."""
    for name, text in unknown(PREFIX, {*map(variable, names), *OTHERS}, environ):
        if name not in _warned:
            _warned.add(name)
            log.warning("%s", text)

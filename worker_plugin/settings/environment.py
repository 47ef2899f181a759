"""Settings in variables of the environment, REDUCTION_<NAME>, and those that nobody reads, most likely for a typo."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping

log = logging.getLogger(__name__)

PREFIX = "REDUCTION_"
#: What is no setting of a state: how much is logged (log_setup.py), and where a child of ours finds its packages
#: (`reduction.process.launch`).
OTHERS = ("REDUCTION_LOG", "REDUCTION_START_PATH")
#: From what likeness on a known name is what was meant, as `difflib` counts; the prefix does not count.
LIKE = 0.6

#: Variables that were warned of in this process.
_warned: set[str] = set()


def variable(name: str) -> str:
    """Return the variable of a setting."""
    return PREFIX + name.upper()


def warn_of_unknown(names: Collection[str], environ: Mapping[str, str]) -> None:
    """Warn of variables that look like settings and are none, once per process."""
    known = {variable(name): None for name in names} | dict.fromkeys(OTHERS)
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in _warned:
            _warned.add(name)
            log.warning("%s", _text(name, list(known)))


def _text(name: str, known: list[str]) -> str:
    ends = {one.removeprefix(PREFIX): one for one in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), ends, n=1, cutoff=LIKE)
    if not near:
        return f"{name} is no setting, and changes nothing"
    return f"{name} is no setting; did you mean {ends[near[0]]}?"

"""Settings in environment variables, REDUCTION_<NAME>, and names that were probably mistyped."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping

log = logging.getLogger(__name__)

PREFIX = "REDUCTION_"
#: Variables with our prefix that are no settings of a state. The first has DDP modules attach
#: themselves (integrations/auto.py). The second says how much is logged (process/log_setup.py). The
#: third tells a child process where it finds its packages (`reduction.process.launch`).
OTHERS = ("REDUCTION_AUTO", "REDUCTION_LOG", "REDUCTION_START_PATH")
#: A known name that is at least this similar to an unknown one, as `difflib` measures it, is
#: suggested instead.
SIMILARITY_MIN = 0.6

#: Variables that this process has warned of.
_warned: set[str] = set()


def variable(name: str) -> str:
    """Return the variable of a setting."""
    return PREFIX + name.upper()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user probably meant, None if there is none."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=SIMILARITY_MIN)
    return matches[0] if matches else None


def warn_of_unknown(names: Collection[str], environ: Mapping[str, str]) -> None:
    """Warn of variables that look like settings and are none, once per process."""
    known = {*map(variable, names), *OTHERS}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in _warned:
            _warned.add(name)
            log.warning("%s", _warning(name, known))


def _warning(name: str, known: Iterable[str]) -> str:
    # All names begin with the prefix, so it says nothing about their similarity.
    meant = nearest(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in sorted(known)])
    if meant is None:
        return f"{name} is no setting, and changes nothing"
    return f"{name} is no setting; did you mean {PREFIX}{meant}?"

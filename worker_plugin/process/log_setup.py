"""What of our log a user sees who has not configured logging, and the variable REDUCTION_LOG.

    logging configured by the user   everything goes there, and nothing anywhere else; levels as usual
    not configured                   stderr, with time and name: warnings, and the line of `announce`
    REDUCTION_LOG=info|warning|error the level of the logger `worker_plugin` in both cases; the line is at info

Python's own last resort prints warnings without time or name. Whether there is a handler of the user's is asked for
each record, because `logging.basicConfig` may come after a state was made.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from reduction.errors import ConfigError

VARIABLE = "REDUCTION_LOG"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Parents of all loggers that worker processes use.
NAMES = ("worker_plugin", "reduction")

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Fallback(logging.Handler):
    """Writes to stderr what no other handler gets."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        if is_configured(logging.getLogger(record.name)):
            return
        try:
            if sys.stderr is not None:  # as in a Windows program without a console
                sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


_fallback = _Fallback()


def prepare(environ: Mapping[str, str] = os.environ) -> None:
    """Have our log shown, if nobody else does. Idempotent.

    Raises:
        ConfigError: REDUCTION_LOG is none of its values.
    """
    level = environ.get(VARIABLE)
    if level and level not in _LEVELS:
        raise ConfigError(f"{VARIABLE} is {level!r}; this version knows {', '.join(map(repr, _LEVELS))}")
    for name in NAMES:
        logger = logging.getLogger(name)
        logger.addHandler(_fallback)  # which takes it once only
        if level:
            logger.setLevel(_LEVELS[level])


def is_configured(logger: logging.Logger) -> bool:
    """Whether records of a logger reach a handler that is not ours."""
    one: logging.Logger | None = logger
    while one is not None:
        if any(handler is not _fallback for handler in one.handlers):
            return True
        one = one.parent if one.propagate else None
    return False


def announce(logger: logging.Logger, text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Log at info, and show it although Python's level is warning unless the user says something else."""
    if logger.isEnabledFor(logging.INFO) or environ.get(VARIABLE) or is_configured(logger):
        logger.info("%s", text)
        return
    _fallback.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, text, (), None))

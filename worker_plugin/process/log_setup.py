"""Shows our log to users who have not configured logging, and reads the environment variable REDUCTION_LOG.

    logging configured by the user   all records go to the user's handlers only; levels work as usual
    not configured                   warnings and the line of `announce` go to stderr, with time and name
    REDUCTION_LOG=info|warning|error sets the level of our loggers in both cases; the line is logged at info

Python's own last resort prints warnings without time or name. Each record checks again for a handler of the user's,
because `logging.basicConfig` may be called after a state was created.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from reduction.errors import ConfigError

VARIABLE = "REDUCTION_LOG"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: The parents of all our loggers in worker processes.
NAMES = ("worker_plugin", "reduction")

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Fallback(logging.Handler):
    """Writes records to stderr that reach no other handler."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        if is_configured(logging.getLogger(record.name)):
            return
        try:
            if sys.stderr is not None:  # e.g. in a Windows program without a console
                sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


_fallback = _Fallback()


def prepare(environ: Mapping[str, str] = os.environ) -> None:
    """Let our log reach stderr while the user has no handler for it. Idempotent.

    Raises:
        ConfigError: REDUCTION_LOG has an unknown value.
    """
    level = environ.get(VARIABLE)
    if level and level not in _LEVELS:
        raise ConfigError(f"{VARIABLE} is {level!r}; this version knows {', '.join(map(repr, _LEVELS))}")
    for name in NAMES:
        logger = logging.getLogger(name)
        logger.addHandler(_fallback)  # it is added only once, however often this is called
        if level:
            logger.setLevel(_LEVELS[level])


def is_configured(logger: logging.Logger) -> bool:
    """Return whether records of a logger reach a handler that is not ours."""
    ancestor: logging.Logger | None = logger
    while ancestor is not None:
        if any(handler is not _fallback for handler in ancestor.handlers):
            return True
        ancestor = ancestor.parent if ancestor.propagate else None
    return False


def announce(logger: logging.Logger, text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Log at level info, and show the line even at Python's default level, which is warning."""
    if logger.isEnabledFor(logging.INFO) or environ.get(VARIABLE) or is_configured(logger):
        logger.info("%s", text)
        return
    _fallback.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, text, (), None))

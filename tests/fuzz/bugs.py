"""Failures of a fuzz target other than an uncaught exception: bugs that the code has caught and logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

#: A longer run counts as a hang. This is a guard, not a measurement.
HANG_S = 20.0

_loop: asyncio.AbstractEventLoop | None = None


def run(target: Coroutine[Any, Any, None]) -> None:
    """Run on a loop that is reused, since a new loop costs more than an input.

    Raises:
        AssertionError: a callback or task of the loop has raised.
    """
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    raised: list[dict[str, Any]] = []
    _loop.set_exception_handler(lambda _, context: raised.append(context))
    try:
        _loop.run_until_complete(target)
    finally:
        if raised:  # before a hang, which may only be a consequence
            raise AssertionError(raised[0]["message"]) from raised[0].get("exception")


class Bugs(logging.Handler):
    """Collects exceptions that a package logs, and silences its other records: most fuzzed inputs cause a warning."""

    def __init__(self, package: str) -> None:
        super().__init__(logging.ERROR)
        self._logger = logging.getLogger(package)
        self._found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._found.append(record)

    def __enter__(self) -> Bugs:
        self._level, self._propagates = self._logger.level, self._logger.propagate
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._logger.propagate = self._propagates

    def raise_first(self) -> None:
        """Raise AssertionError with the cause of the first exception, if there was one."""
        for record in self._found:
            raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]

"""Formats of log lines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from reduction.text import printable


class LineFormatter(logging.Formatter):
    """Formatter that writes each record on one line, even if a peer sent line breaks. Tracebacks keep theirs."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record's line with unprintable characters escaped."""
        return printable(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """Formatter of records as lines of JSON: time (ISO 8601, UTC), level, logger, pid, message, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def formatter(log_format: str) -> logging.Formatter:
    """Return the formatter for one of `config.LOG_FORMATS`."""
    if log_format == "json":
        return JsonFormatter()
    return LineFormatter("%(asctime)s level=%(levelname)s logger=%(name)s pid=%(process)d %(message)s")

"""How lines of the log are written."""

from __future__ import annotations

import logging

#: Escapes control characters that a peer may have sent: they could break the line or move the
#: cursor.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class LineFormatter(logging.Formatter):
    """Writes each record on one line, even if a peer sent line breaks. Tracebacks keep theirs."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record's line with control characters escaped."""
        return super().formatMessage(record).translate(_ESCAPES)

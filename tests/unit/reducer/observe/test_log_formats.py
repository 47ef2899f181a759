"""A reducer's log has one line per record, whatever text a peer puts into it."""

import json
import logging
import sys
from datetime import datetime

import pytest

from reducer.observe.log_formats import LineFormatter, formatter


def line(message, exc_info=None):
    record = logging.LogRecord("reducer", logging.WARNING, "file", 1, "reason=%s", (message,), exc_info)
    return LineFormatter("level=%(levelname)s %(message)s").format(record)


def test_control_characters_are_escaped():
    text = line("a\n2026 level=INFO join\x1b[2J\r\x7f\x9b\u202e")
    assert text == r"level=WARNING reason=a\n2026 level=INFO join\x1b[2J\r\x7f\x9b\u202e"


def test_other_characters_stay():
    assert line("größe 漢 ~") == "level=WARNING reason=größe 漢 ~"


def test_a_traceback_keeps_its_lines():
    try:
        raise ValueError("no")
    except ValueError:
        lines = line("x", sys.exc_info()).splitlines()
    assert lines[0] == "level=WARNING reason=x"
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: no"


def test_json():
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("reducer", logging.WARNING, "file", 1, "a\n%s", ("x",), sys.exc_info())
    text = formatter("json").format(record)
    assert "\n" not in text
    fields = json.loads(text)
    assert fields["message"] == "a\nx"
    assert (fields["level"], fields["logger"], fields["pid"]) == ("warning", "reducer", record.process)
    assert datetime.fromisoformat(fields["time"]).timestamp() == pytest.approx(record.created, abs=1e-3)
    assert fields["traceback"].endswith("ValueError: no")

"""A pytest plugin that writes the outcome of each test into a JSON file.

Some tests start pytest again as their second rank. Only the process started by the runner writes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

#: Variables for the file, and for the process that must be our parent.
OUT, PARENT = "LIBRARY_SUITES_OUT", "LIBRARY_SUITES_PARENT"

_results: dict[str, tuple[str, str]] = {}
_is_mine = os.environ.get(PARENT) == str(os.getppid())


def pytest_collection_finish(session: Any) -> None:
    """Every test has failed until it is known to have passed."""
    for item in session.items:
        _results[item.nodeid] = "fail", "its process ended before it did"
    _write()


def pytest_collectreport(report: Any) -> None:
    """Record a file that cannot be read as a failed test."""
    if report.failed:
        _results[report.nodeid] = "fail", report.longreprtext[-3000:]
        _write()


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst outcome of setup, call and teardown."""
    if report.failed:
        _results[report.nodeid] = "fail", report.longreprtext[-3000:]
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
        _results[report.nodeid] = "skip", reason
    elif report.when == "call":
        _results[report.nodeid] = "pass", ""
    _write()


def _write() -> None:
    if _is_mine:
        Path(os.environ[OUT]).write_text(json.dumps(_results))

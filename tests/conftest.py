"""Options for all tests."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings
from reduction.log_limit import LINES

# A busy machine is no failure; pytest-timeout ends tests that hang.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Benchmarks are only tried here: TRIED in benchmarks/lab/ranks.py, a module that takes a second to import.
os.environ["BENCHMARK_IS_TRIED"] = "1"

# A shell without job control starts background jobs with SIGINT and SIGQUIT ignored, and children inherit that, so
# these signals would reach no process in tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests that take many minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    skip = pytest.mark.skip(reason="takes many minutes; run with --full")
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _fresh_lines() -> None:
    """Forget log lines of earlier tests, so that none is left out as a repetition."""
    LINES.close()

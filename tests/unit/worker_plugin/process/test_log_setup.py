"""Our log as a user sees it, with and without a logging setup of their own."""

import logging
import re
import subprocess
import sys

import pytest
from reduction.errors import ConfigError
from support.processes.children import environment

from worker_plugin import ReductionState
from worker_plugin.process import log_setup
from worker_plugin.process.log_setup import announce, is_configured, prepare

SCRIPT = """
import importlib.util, logging, sys
path, before, after = sys.argv[1:]
spec = importlib.util.spec_from_file_location("log_setup", path)  # without torch
log_setup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(log_setup)
exec(before)
log_setup.prepare()
log_setup.prepare()
exec(after)
log = logging.getLogger("worker_plugin.client")
log_setup.announce(log, "the line")
log.info("details")
log.warning("careful")
logging.getLogger("reduction.security.tokens").warning("shared")
log.error("bad")
"""
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
LINE = STAMP + "INFO worker_plugin.client: the line"
DETAILS = STAMP + "INFO worker_plugin.client: details"
CAREFUL = STAMP + "WARNING worker_plugin.client: careful"
SHARED = STAMP + "WARNING reduction.security.tokens: shared"
BAD = STAMP + "ERROR worker_plugin.client: bad"
BASIC = "logging.basicConfig(format='mine %(message)s')"


@pytest.mark.parametrize(
    ("level", "before", "after", "expected"),
    [
        (None, "", "", [LINE, CAREFUL, SHARED, BAD]),
        ("", "", "", [LINE, CAREFUL, SHARED, BAD]),
        ("info", "", "", [LINE, DETAILS, CAREFUL, SHARED, BAD]),
        ("warning", "", "", [CAREFUL, SHARED, BAD]),
        ("error", "", "", [BAD]),
        (None, BASIC, "", ["mine careful", "mine shared", "mine bad"]),
        (None, "", BASIC, ["mine careful", "mine shared", "mine bad"]),
        (
            None,
            "logging.basicConfig(format='mine %(message)s', level='INFO')",
            "",
            ["mine the line", "mine details", "mine careful", "mine shared", "mine bad"],
        ),
        ("info", BASIC, "", ["mine the line", "mine details", "mine careful", "mine shared", "mine bad"]),
        ("error", BASIC, "", ["mine bad"]),
        (None, "", "sys.stderr = None", []),
    ],
)
def test_stderr_output_by_level_and_setup(level, before, after, expected):
    more = {} if level is None else {"REDUCTION_LOG": level}
    command = [sys.executable, "-c", SCRIPT, log_setup.__file__, before, after]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(**more), timeout=60)
    lines = ended.stderr.splitlines()
    assert ended.returncode == 0, ended.stderr
    assert len(lines) == len(expected), ended.stderr
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), line


def test_a_handler_of_ours_alone_is_not_a_configuration():
    prepare({})
    alone = logging.getLogger("worker_plugin.alone")
    alone.propagate = False
    try:
        assert not is_configured(alone)
        alone.addHandler(log_setup._fallback)
        assert not is_configured(alone)
        alone.addHandler(logging.NullHandler())
        assert is_configured(alone)
    finally:
        alone.propagate = True
        alone.handlers.clear()


def test_the_line_goes_only_to_the_users_logging(caplog, capsys):
    prepare({})
    log = logging.getLogger("worker_plugin.client")
    announce(log, "not at this level", {})
    with caplog.at_level(logging.INFO):
        announce(log, "the line", {})
    assert caplog.messages == ["the line"]
    assert capsys.readouterr().err == ""


def test_an_unknown_level_is_refused(monkeypatch):
    monkeypatch.setenv("REDUCTION_LOG", "loud")
    with pytest.raises(
        ConfigError, match="REDUCTION_LOG is 'loud'; this version knows 'info', 'warning', 'error'"
    ):
        ReductionState("a:1")

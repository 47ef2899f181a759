"""Machines with a byte order other than the wire's are rejected at the first import, not by wrong sums."""

import importlib
import subprocess
import sys

import pytest
import reduction

SCRIPT = """
import sys
sys.byteorder = "big"
import {package}
"""


def test_a_little_endian_machine():
    assert sys.byteorder == "little"
    assert importlib.reload(reduction).__version__


def test_a_big_endian_machine_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(
        ImportError, match=r"^reduction-server does not run on big-endian machines: payloads are"
    ):
        importlib.reload(reduction)


@pytest.mark.parametrize("package", ["worker_plugin", "reducer.commands.main", "reduction.wire"])
def test_importing_any_package_first_is_refused(package):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(package=package)], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert (
        "ImportError: reduction-server does not run on big-endian machines" in ended.stderr.splitlines()[-1]
    )

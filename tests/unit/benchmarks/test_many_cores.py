"""The command for machines with many cores: what it runs exists, and a step that fails or hangs stops no other."""

import argparse
import sys

import pytest

from benchmarks import many_cores
from benchmarks.micro import kernels
from benchmarks.shaped import __main__ as shaped


@pytest.mark.parametrize("name", many_cores.STEPS)
def test_each_step_is_a_command_that_there_is(name, monkeypatch, tmp_path):
    module, *options = many_cores.STEPS[name][0].split()
    if module == "benchmarks.micro.kernels":
        assert not options
        assert callable(kernels.main)
        return
    assert module == "benchmarks.shaped"
    monkeypatch.setattr(sys, "argv", [module, *options, "--json", str(tmp_path / "x.json")])
    assert isinstance(shaped.parse(), argparse.Namespace)


def test_it_takes_ten_minutes_at_most():
    assert sum(limit_s for _, limit_s in many_cores.STEPS.values()) <= 600


def test_a_step_that_takes_too_long_is_ended_and_one_that_fails_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(
        many_cores, "STEPS", {"slow": ("http.server 0", 1), "failing": ("no.such.module", 30)}
    )
    assert many_cores.run("slow", tmp_path) == "slow: not done within 1 s"
    assert many_cores.run("failing", tmp_path).startswith("failing: exit code 1 ")
    assert "No module named" in (tmp_path / "failing.txt").read_text()

"""The command for machines with many cores: everything it runs exists. `gpu/test_proof.py` runs all of it, tiny."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import many_cores
from benchmarks.gpu import nccl
from benchmarks.lab import network
from benchmarks.method.parts import Part
from benchmarks.micro import kernels
from benchmarks.shaped import __main__ as shaped


@pytest.mark.parametrize("part", many_cores.parts(), ids=lambda part: part.name)
def test_each_part_is_an_existing_command(
    part: Part, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for command in filter(None, (part.command, part.otherwise)):
        module, *options = [word.format(out=tmp_path) for word in shlex.split(command)]
        if module == "benchmarks.micro.kernels":
            assert not options
            assert callable(kernels.main)
            continue
        monkeypatch.setattr(sys, "argv", [module, *options])
        parse = {"benchmarks.shaped": shaped.parse, "benchmarks.gpu.nccl": nccl.parse}[module]
        assert isinstance(parse(), argparse.Namespace)


def test_it_takes_ten_minutes_at_most() -> None:
    assert sum(part.limit_s for part in many_cores.parts()) <= 600


def test_it_reports_why_links_cannot_be_shaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.shutil, "which", lambda _name: None)
    assert "the command tc (iproute2)" in many_cores.lacks()["links"]

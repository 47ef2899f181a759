"""Files carried to a machine that lacks packages."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu.carry import lacking, packages, requirements_of

THERE = packages(
    "numpy==2.5.2\nUvloop\nprometheus_client==0.19\ngrpcio\ntorch @ file:///torch.whl\n\n# pip\n"
)


def test_a_machines_package_list_is_read() -> None:
    assert THERE == {
        "numpy": "2.5.2",
        "uvloop": None,
        "prometheus-client": "0.19",
        "grpcio": None,
        "torch": None,
    }


@pytest.mark.parametrize(
    ("wanted", "carried"),
    [
        ("numpy>=1.26", []),
        ("numpy>=3", ["numpy"]),
        ("uvloop", []),
        ("uvloop>=0.21; sys_platform != 'win32'", ["uvloop"]),
        ("prometheus-client>=0.20", ["prometheus-client"]),
        ("tomli; python_version < '3.11'", []),
        ("grpcio-status>=1.76", ["grpcio-status", "six"]),
    ],
)
def test_needed_packages_are_carried(wanted: str, carried: list[str]) -> None:
    needs = {"grpcio-status": ["grpcio", "six>=1", "pytest; extra == 'tests'"], "six": ["grpcio-status"]}
    found = lacking([wanted], THERE, "3.12", lambda one: needs.get(one.name, []))
    assert [requirement.name for requirement in found] == carried


def test_the_requirements_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "a-1.dist-info/METADATA", "Name: a\nRequires-Dist: b>=1; extra == 'x'\nRequires-Dist: c\n\nA\n"
        )
    assert [Requirement(text).name for text in requirements_of(wheel)] == ["b", "c"]

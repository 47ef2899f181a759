"""A missing or outdated torch raises an ImportError that says what to install."""

import builtins
import importlib
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import worker_plugin
from worker_plugin.process.torch_version import OLDEST, is_too_old, require_torch

PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


@pytest.mark.parametrize(
    ("is_old", "versions"),
    [
        (False, "2.8.0 2.8.0a0+nv25.06 2.8.0.dev20250601+cu128 2.13.0+cpu 2.10.1 3.0.0 10.0 git0a1b2c3"),
        (True, "2.7.1 2.7.1+cu126 2.7.0a0+nv25.04 2.0.1 1.13.1 0.4"),
    ],
)
def test_old_versions_are_recognized(is_old, versions):
    assert {version: is_too_old(version) for version in versions.split()} == dict.fromkeys(
        versions.split(), is_old
    )


def test_this_torch_passes():
    require_torch()


@pytest.mark.parametrize(
    ("version", "here"), [("2.7.1+cpu", "found 2.7.1+cpu"), (None, "torch is not installed")]
)
def test_an_old_torch_or_none_is_refused_at_the_import(monkeypatch, version, here):
    if version is None:
        cannot_import(monkeypatch, missing="torch")
    else:
        monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError) as caught:
        importlib.reload(worker_plugin)
    assert str(caught.value) == (
        f'worker_plugin needs torch 2.8 or newer, but {here}: pip install "reduction-server[torch]"'
    )


def test_a_missing_dependency_of_torch_is_reported_as_is(monkeypatch):
    cannot_import(monkeypatch, missing="sympy")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'sympy'$"):
        require_torch()


def test_the_extra_requires_the_same_version():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert extras["torch"] == [f"torch>={OLDEST[0]}.{OLDEST[1]}"]


def cannot_import(monkeypatch, missing):
    """Make `import torch` fail as if `missing` were not installed."""
    really = builtins.__import__

    def refuse(name, *arguments, **keywords):
        if name == "torch":
            raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)
        return really(name, *arguments, **keywords)

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(builtins, "__import__", refuse)

"""The hook that torch calls automatically registers the backend once, and never raises, whatever modules are found."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import _reduction_server_entry_points as entry_points
import pytest

ROOT = Path(__file__).parents[3]


class Backend:
    """Stands in for torch's class."""

    def __init__(self) -> None:
        self._plugins: dict[str, Any] = {}

    def register_backend(self, name: str, maker: Any, *, extended_api: bool, devices: list[str]) -> None:
        assert extended_api
        assert devices == ["cpu", "cuda"]
        self._plugins[name.upper()] = maker


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    module = types.ModuleType("torch.distributed")
    vars(module).update(Backend=Backend(), is_available=lambda: True)
    torch = types.ModuleType("torch")
    vars(torch)["distributed"] = module
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    monkeypatch.delenv(entry_points.VARIABLE, raising=False)
    return module  # type: ignore[return-value]


def put(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def put_plugin(monkeypatch: pytest.MonkeyPatch, folder: str, name: str, **members: Any) -> None:
    put(monkeypatch, "worker_plugin", __path__=[str(ROOT / "worker_plugin")])
    put(monkeypatch, f"worker_plugin.{folder}")
    put(monkeypatch, f"worker_plugin.{folder}.{name}", **members)


def test_the_backend_is_registered_once(distributed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points.on_import_torch()
    maker = distributed.Backend._plugins["REDUCTION"]
    monkeypatch.setattr(distributed.Backend, "register_backend", None)
    entry_points.on_import_torch()
    put_plugin(monkeypatch, "process_group", "register", make_group=lambda *arguments: arguments)
    assert maker("options", None) == ("options", None)


def test_a_torch_without_distributed(distributed: Any) -> None:
    distributed.is_available = lambda: False
    entry_points.on_import_torch()
    assert not distributed.Backend._plugins


def test_the_variable_selects_what_is_installed(distributed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes: list[str] = []
    put_plugin(monkeypatch, "integrations", "auto", install=wishes.append)
    entry_points.on_import_torch()
    assert not wishes
    monkeypatch.setenv(entry_points.VARIABLE, "ddp")
    entry_points.on_import_torch()
    assert wishes == ["ddp"]


def test_an_error_is_only_one_line(
    distributed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distributed, "Backend", None)
    entry_points.on_import_torch()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("reduction-server: not loaded into torch: AttributeError(")


@pytest.mark.parametrize("error", [ImportError("no luck"), SystemExit(1), OSError("out of descriptors")])
def test_torch_is_imported_whatever_our_packages_raise(
    distributed: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    def install(_: str) -> None:
        raise error

    put_plugin(monkeypatch, "integrations", "auto", install=install)
    monkeypatch.setenv(entry_points.VARIABLE, "ddp")
    entry_points.on_import_torch()
    said = capsys.readouterr().err
    assert said.startswith("reduction-server: REDUCTION_AUTO=ddp has no effect: ")
    assert str(error) in said
    monkeypatch.setattr(sys, "stderr", None)
    entry_points.on_import_torch()


@pytest.mark.parametrize("kind", ["file", "package", "folder"])
@pytest.mark.parametrize("name", ["reduction", "worker_plugin"])
def test_a_users_module_is_named_and_not_run(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{name}.py"
    if kind != "file":
        file = tmp_path / name / "__init__.py"
        file.parent.mkdir()
    if kind != "folder":
        file.write_text("raise SystemExit('somebody ran this')")
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    if kind == "folder":  # a package anywhere in sys.path takes precedence
        entry_points.require_packages()
        return
    with pytest.raises(ImportError) as caught:
        entry_points.require_packages()
    assert str(caught.value).startswith(f"{file} hides the package {name!r} of reduction-server: rename it")
    assert (caught.value.name, caught.value.path) == (name, str(file))


def test_a_users_module_that_is_imported_already(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, "reduction")
    with pytest.raises(ImportError, match="a module without a file hides the package 'reduction'"):
        entry_points.require_packages()


def test_a_missing_package_is_left_to_fail_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "worker_plugin", raising=False)
    monkeypatch.setattr(sys, "path", [str(ROOT / "proto")])
    entry_points.require_packages()


def test_the_command_runs_our_reducer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reducer.py").touch()
    (tmp_path / "reducer").mkdir()
    (tmp_path / "reducer" / "__main__.py").touch()
    ran: list[str] = []
    monkeypatch.setattr(entry_points.runpy, "run_path", lambda path, run_name: ran.append(path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT)])
    entry_points.reducer()
    assert ran == [str(ROOT / "reducer" / "__main__.py")]

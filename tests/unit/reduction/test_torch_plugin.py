"""What torch calls by itself: it registers the backend once, and never raises."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from reduction import torch_plugin


class Backend:
    """Stands for torch's."""

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
    monkeypatch.delenv(torch_plugin.VARIABLE, raising=False)
    return module  # type: ignore[return-value]


def put(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_the_backend_is_registered_once(distributed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_plugin.on_import_torch()
    maker = distributed.Backend._plugins["REDUCTION"]
    monkeypatch.setattr(distributed.Backend, "register_backend", None)
    torch_plugin.on_import_torch()
    for package in ("worker_plugin", "worker_plugin.process_group"):
        put(monkeypatch, package)
    put(monkeypatch, "worker_plugin.process_group.register", make_group=lambda *arguments: arguments)
    assert maker("options", None) == ("options", None)


def test_a_torch_without_distributed(distributed: Any) -> None:
    distributed.is_available = lambda: False
    torch_plugin.on_import_torch()
    assert not distributed.Backend._plugins


def test_the_variable_installs_what_it_asks_for(distributed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes: list[str] = []
    for package in ("worker_plugin", "worker_plugin.integrations"):
        put(monkeypatch, package)
    put(monkeypatch, "worker_plugin.integrations.auto", install=wishes.append)
    torch_plugin.on_import_torch()
    assert not wishes
    monkeypatch.setenv(torch_plugin.VARIABLE, "ddp")
    torch_plugin.on_import_torch()
    assert wishes == ["ddp"]


def test_an_error_is_a_line_and_no_more(
    distributed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distributed, "Backend", None)
    torch_plugin.on_import_torch()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("reduction-server: not loaded into torch: AttributeError(")

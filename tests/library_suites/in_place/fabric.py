"""Fabric: the process groups of its DDPStrategy have the backend "reduction" unless a test asks for one."""

from __future__ import annotations

import functools
from typing import Any

from lightning.fabric.strategies import DDPStrategy

_original = DDPStrategy.__init__


@functools.wraps(_original)
def _make(self: DDPStrategy, *arguments: Any, **named: Any) -> None:
    _original(self, *arguments, **named)
    # An attribute, so that spawned ranks have it as well.
    if self._process_group_backend is None:
        self._process_group_backend = "reduction"


DDPStrategy.__init__ = _make

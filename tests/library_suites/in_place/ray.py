"""Ray Train: a TorchTrainer whose test gives it no `torch_config` starts two reducers as actors."""

from __future__ import annotations

import functools
from typing import Any

from ray.train.torch import TorchTrainer

from worker_plugin.integrations.ray import ReductionConfig

_original = TorchTrainer.__init__


@functools.wraps(_original)
def _make(self: Any, *arguments: Any, **named: Any) -> None:
    if named.get("torch_config") is None:
        # No CPUs are reserved for them, because the tests make Ray offer only as many as they use.
        named["torch_config"] = ReductionConfig(reducers=2, num_cpus=0)
    _original(self, *arguments, **named)


TorchTrainer.__init__ = _make

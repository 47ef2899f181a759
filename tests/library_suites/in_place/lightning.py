"""Lightning: its DDPStrategy, and all its names such as "ddp" and "ddp_spawn", are our strategy."""

from __future__ import annotations

import lightning.pytorch.strategies
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

from worker_plugin.integrations.lightning import ReductionStrategy

for entry in StrategyRegistry.values():
    if entry["strategy"] is DDPStrategy:
        entry["strategy"] = ReductionStrategy
lightning.pytorch.strategies.DDPStrategy = ReductionStrategy

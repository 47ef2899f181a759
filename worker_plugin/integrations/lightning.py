"""Lightning: `Trainer(strategy="reduction")` averages gradients through the reducers.

    import reduction_server.lightning     # before the Trainer is made

    Trainer(strategy="reduction", accelerator="cpu", devices=4)
    Trainer(strategy=ReductionStrategy(reducers=["10.0.0.5:50051"], wire_dtype="bf16"))

On a CPU, Lightning silently ignores its own `ddp_comm_hook` (lightning 2.6); this strategy registers
its hook on every device. Without this module `DDPStrategy(process_group_backend="reduction")` works, and
so does Fabric's.
"""

from __future__ import annotations

from typing import Any

from reduction.errors import ConfigError
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.config import AllSettings
from worker_plugin.hook import attach, attached_state
from worker_plugin.state import ReductionState

try:
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
except ModuleNotFoundError:
    from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry

NAME = "reduction"


class ReductionStrategy(DDPStrategy):
    """Lightning's DDPStrategy, with the gradients averaged by the reducers.

    Args:
        **arguments: arguments of `DDPStrategy`, and settings of `ReductionState`, by name.

    Raises:
        ConfigError: another communication hook was given as well, or a setting is wrong.
    """

    strategy_name = NAME

    def __init__(self, **arguments: Any) -> None:
        names = AllSettings.__annotations__
        mine = {name: arguments.pop(name) for name in names if name in arguments}
        if arguments.get("ddp_comm_hook") is not None:
            raise ConfigError(
                f"ddp_comm_hook={arguments['ddp_comm_hook']!r} cannot be used with strategy={NAME!r}, which is a hook"
            )
        self._settings: AllSettings = mine  # type: ignore[assignment]
        #: The state that averages the gradients, for example for its `stats`. None before the training begins, and if
        #: `REDUCTION_AUTO` has already created one.
        self.reduction_state: ReductionState | None = None
        super().__init__(**arguments)

    def _register_ddp_hooks(self) -> None:
        """See DDPStrategy, whose own method does nothing on a CPU."""
        assert isinstance(self.model, DistributedDataParallel)
        if attached_state(self.model) is None:
            self.reduction_state = attach(self.model, **self._settings)

    def teardown(self) -> None:
        """See DDPStrategy."""
        if self.reduction_state is not None:
            self.reduction_state.close()
        super().teardown()


StrategyRegistry.register(NAME, ReductionStrategy, description="Data parallel, gradients through reducers")

"""DDP modules of elastic jobs: DDP averages within its worker's process group, and the hook over all workers.

A process group that spans workers would hang when one of them dies. So DDP believes that its worker
is alone, and what it otherwise agrees on with other ranks must already be the same on all of them:

- Its buckets. After the first step DDP reorders them by the arrival of the gradients, and a worker that
  joins later would still have the initial order. `find_unused_parameters=True` prevents that.
- Which parameters were used. DDP leaves the gradient of an unused parameter alone; if another worker used
  it, the models would diverge. So all must be used in each step, which is checked.
- Its buffers, which `state.sync` makes equal in place of `broadcast_buffers`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from reduction.errors import ConfigError
from torch.nn.parallel import DistributedDataParallel


def check_alone(module: DistributedDataParallel, local_size: int = 1) -> None:
    """Check that a module can be used in an elastic job, by a worker of `local_size` processes.

    Raises:
        ConfigError: it cannot; the message says how to create it.
    """
    size = dist.get_world_size(module.process_group)
    if local_size > 1 and size != local_size:
        raise ConfigError(
            f"the DistributedDataParallel module averages in a process group of {size}, and this node has {local_size} "
            f"ranks (local_group): create it in the default group"
        )
    if size != local_size:
        raise ConfigError(
            f"the DistributedDataParallel module averages in a process group of {size}, which would hang when a "
            f"worker dies: in an elastic job create it in a group of only its own process, "
            f'init_process_group("gloo", store=HashStore(), rank=0, world_size=1); '
            f"or, if these {size} are the ranks of one node, set local_group={size}"
        )
    if not module.find_unused_parameters:
        raise ConfigError(
            "DistributedDataParallel reorders its buckets after the first step, and a worker that joins later has "
            "a different order: in an elastic job create it with find_unused_parameters=True"
        )


class UsedParameters:
    """The parameters of the modules that have received gradients since the last check."""

    def __init__(self) -> None:
        self._all: dict[torch.Tensor, str] = {}
        self._used: set[torch.Tensor] = set()

    def watch(self, module: DistributedDataParallel) -> None:
        """Watch the gradients of a module from now on."""
        for name, parameter in module.module.named_parameters():
            if parameter.requires_grad and parameter not in self._all:
                self._all[parameter] = name
                parameter.register_post_accumulate_grad_hook(self._used.add)

    def check(self) -> None:
        """Check that either all parameters were used or none, and start over.

        Raises:
            ConfigError: some were not used.
        """
        unused = [name for parameter, name in self._all.items() if parameter not in self._used]
        if self._used and unused:
            raise ConfigError(
                f"{len(unused)} of {len(self._all)} parameters got no gradient in the last step, such as {unused[0]}: "
                f"in an elastic job DDP cannot know whether other workers used them; set requires_grad=False for "
                f"parameters that are never used, and use all others in every step"
            )
        self._used.clear()

    def forget(self) -> None:
        """Start over without a check, because this worker has aborted a backward pass."""
        self._used.clear()

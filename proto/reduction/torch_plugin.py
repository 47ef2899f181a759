"""What torch calls by itself, through the entry points `torch.backends` and `torch.distributed.backends`.

Torch 2.5 and newer call the first at the end of every `import torch`, 2.14 and newer the second when
the backend "reduction" is first named; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns the first off. So this
module costs next to nothing, imports our packages when they are used, and never raises: an exception
here would break `import torch` for everybody.
"""

from __future__ import annotations

import os
import sys
from typing import Any

NAME = "reduction"
VARIABLE = "REDUCTION_AUTO"


def on_import_torch() -> None:
    """Register the backend; with REDUCTION_AUTO, have DDP modules average through the reducers."""
    try:
        register_backend()
        if wanted := os.environ.get(VARIABLE):
            from worker_plugin.integrations.auto import install

            install(wanted)
    except Exception as error:
        print(f"reduction-server: not loaded into torch: {error!r}", file=sys.stderr, flush=True)


def register_backend() -> None:
    """Make the backend known to torch, which then imports `worker_plugin` to make a group. Idempotent."""
    import torch.distributed as dist

    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return
    # A list: of a string torch 2.13 would take the letters for devices.
    dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=["cpu", "cuda"])


def _make_group(options: Any, pg_options: object) -> Any:
    from worker_plugin.process_group.register import make_group

    return make_group(options, pg_options)

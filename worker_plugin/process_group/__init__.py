"""The "reduction" backend of `torch.distributed`: all-reduces go through the reducers, all else to Gloo or NCCL.

    dist.init_process_group("reduction")

Importing this package registers the backend. That is only needed where torch does not load plug-ins
automatically (TORCH_DEVICE_BACKEND_AUTOLOAD=0); see `_reduction_server_entry_points`.

    register            creates groups for torch, which asks by name
    groups              the group for torch 2.8 to 2.13, and the backend for torch 2.14 and newer
    all_reduce          which all-reduces the reducers do, and how they are issued; the common base of both
    work                the return value of an all-reduce
    completions         the threads that complete its future
    inner               the group of Gloo or NCCL that does everything else
    options             settings of one group
    hsdp                error feedback for HSDP
"""

from _reduction_server_entry_points import register_backend

from worker_plugin.process_group.hsdp import add_error_feedback
from worker_plugin.process_group.options import ReductionOptions
from worker_plugin.process_group.register import state_of

register_backend()

__all__ = ["ReductionOptions", "add_error_feedback", "state_of"]

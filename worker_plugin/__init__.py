"""Reduction Server for PyTorch, the training side.

from worker_plugin import ReductionState, reduction_hook

state = ReductionState(reducers=["10.0.0.5:50051", "10.0.0.6:50051"])
ddp_model.register_comm_hook(state, reduction_hook)
"""

from reduction import __version__, errors

from worker_plugin.hook import reduction_hook
from worker_plugin.state import ReductionState

__all__ = ["ReductionState", "__version__", "errors", "reduction_hook"]

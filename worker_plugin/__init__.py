"""Reduction Server for PyTorch, the training side.

from worker_plugin import attach

state = attach(ddp_model, reducers=["10.0.0.5:50051", "10.0.0.6:50051"])
"""

from _reduction_server_entry_points import require_packages

require_packages()  # before whatever imports `reduction`

from reduction import __version__, errors  # noqa: E402

from worker_plugin.process import grpc_variables  # noqa: E402, F401  before whatever imports grpc
from worker_plugin.process.torch_version import require_torch  # noqa: E402

require_torch()  # before whatever imports torch

from worker_plugin.hook import attach, reduction_hook  # noqa: E402
from worker_plugin.state import ReductionState  # noqa: E402

__all__ = ["ReductionState", "__version__", "attach", "errors", "reduction_hook"]

"""The training side. Its public interface is `reduction_server`, but its names remain available here as well."""

from _reduction_server_entry_points import require_packages

require_packages()  # before anything imports `reduction`

from reduction import __version__, errors  # noqa: E402

from worker_plugin.process import grpc_variables  # noqa: E402, F401  before anything imports grpc
from worker_plugin.process.torch_version import require_torch  # noqa: E402

require_torch()  # before anything imports torch

from worker_plugin.hook import attach, reduction_hook  # noqa: E402
from worker_plugin.riders.drift import watch  # noqa: E402
from worker_plugin.state import ReductionState  # noqa: E402
from worker_plugin.tensors.digest import digest  # noqa: E402

__all__ = ["ReductionState", "__version__", "attach", "digest", "errors", "reduction_hook", "watch"]

"""Horovod's API over the reducers: `import reduction_server.horovod as hvd` instead of `import horovod.torch as hvd`."""

from worker_plugin.integrations import horovod
from worker_plugin.integrations.horovod import *  # noqa: F403

__all__ = horovod.__all__  # noqa: PLE0605

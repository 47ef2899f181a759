"""Horovod's API over the reducers. Import it as `hvd` in place of `horovod.torch`."""

from worker_plugin.integrations import horovod
from worker_plugin.integrations.horovod import *  # noqa: F403

__all__ = horovod.__all__

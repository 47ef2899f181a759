"""torchft support: a process group for its replicas."""

from worker_plugin.integrations.torchft import ProcessGroupReduction

__all__ = ["ProcessGroupReduction"]

"""Lightning support. Importing this module registers the strategy "reduction"."""

from worker_plugin.integrations.lightning import ReductionStrategy

__all__ = ["ReductionStrategy"]

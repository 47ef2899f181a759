"""Ray Train support, with reducers as actors alongside the workers."""

from worker_plugin.integrations.ray import ReductionConfig, start_pool, stop_pool

__all__ = ["ReductionConfig", "start_pool", "stop_pool"]

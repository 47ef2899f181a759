"""For jobs whose workers come and go."""

from worker_plugin.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]

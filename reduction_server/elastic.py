"""Support for jobs whose workers join and leave while they run."""

from worker_plugin.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]

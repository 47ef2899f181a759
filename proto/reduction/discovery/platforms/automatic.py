"""Platforms that name reducers without being asked. Nothing is guessed: the pool or group must be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reduction.discovery.cluster import DEFAULT_PORT, Cluster
from reduction.discovery.platforms import sagemaker, vertex
from reduction.discovery.schemes import check_texts
from reduction.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Named:
    """Texts that name reducers, and who says so."""

    texts: tuple[str, ...]
    source: str


def named_by_platform(environ: Mapping[str, str]) -> Named | None:
    """Return the reducers of Vertex AI's third worker pool, or of SageMaker's instance group `reducers`.

    Raises:
        ConfigError: a platform's document is malformed, or two platforms name reducers.
    """
    named = [found for found in (_of_vertex(environ), _of_sagemaker(environ)) if found is not None]
    if len(named) > 1:
        both = " and ".join(f"{found.source} ({', '.join(found.texts)})" for found in named)
        raise ConfigError(f"two platforms name reducers, {both}: pass reducers= or set REDUCTION_REDUCERS")
    return named[0] if named else None


def cluster_of_platform(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of a Vertex AI or SageMaker job, None on other machines.

    It has no reducers if the job has none: no third worker pool, or no instance group `reducers`.

    Raises:
        ConfigError: a document is malformed, or both platforms are there.
    """
    spec, document = environ.get(vertex.VARIABLE), sagemaker.read(environ)
    if spec and document is not None:
        raise ConfigError(f"both {vertex.VARIABLE} and SageMaker's resourceconfig.json are there: unset one")
    if spec:
        return vertex.parse(spec, job_id=environ.get(vertex.JOB_ID))
    if document is not None:
        return sagemaker.whole(document, environ.get(sagemaker.JOB_NAME))
    return None


def _of_vertex(environ: Mapping[str, str]) -> Named | None:
    spec = environ.get(vertex.VARIABLE)
    return _named(vertex.parse(spec).reducers, vertex.VARIABLE) if spec else None


def _of_sagemaker(environ: Mapping[str, str]) -> Named | None:
    document = sagemaker.read(environ)
    if document is None or sagemaker.GROUP not in sagemaker.groups(document):
        return None
    cluster = sagemaker.parse(document, sagemaker.GROUP, DEFAULT_PORT)
    return _named(cluster.reducers, "SageMaker's resourceconfig.json")


def _named(reducers: tuple[str, ...], source: str) -> Named | None:
    if not reducers:
        return None
    try:
        check_texts(reducers)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return Named(reducers, source)

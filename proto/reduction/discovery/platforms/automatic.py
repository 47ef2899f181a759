"""Platforms that name reducers without any setting. Nothing is guessed: the pool or group must exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reduction.discovery.cluster import Cluster
from reduction.discovery.platforms import sagemaker, vertex
from reduction.discovery.schemes import check_texts
from reduction.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Named:
    """Texts that name reducers, and their source."""

    texts: tuple[str, ...]
    source: str


def named_by_platform(environ: Mapping[str, str]) -> Named | None:
    """Return the reducers of `naming_platform`.

    Raises:
        ConfigError: see `naming_platform`.
    """
    found = naming_platform(environ)
    return None if found is None else Named(found[0].reducers, found[1])


def naming_platform(environ: Mapping[str, str]) -> tuple[Cluster, str] | None:
    """Return the cluster with Vertex AI's third worker pool or SageMaker's group `reducers`, and its source.

    Raises:
        ConfigError: a platform's document is malformed, or two platforms name reducers.
    """
    naming = [(cluster, source) for cluster, source in _clusters(environ) if cluster.reducers]
    for cluster, source in naming:
        try:
            check_texts(cluster.reducers)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    if len(naming) > 1:
        both = " and ".join(f"{source} ({', '.join(cluster.reducers)})" for cluster, source in naming)
        raise ConfigError(f"two platforms name reducers, {both}: pass reducers= or set REDUCTION_REDUCERS")
    return naming[0] if naming else None


def cluster_of_platform(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of a Vertex AI or SageMaker job, None on other machines.

    It has no reducers if the job has no third worker pool or no instance group `reducers`.

    Raises:
        ConfigError: a document is malformed, or both platforms have one.
    """
    clusters = _clusters(environ)
    if len(clusters) > 1:
        both = " and ".join(source for _, source in clusters)
        raise ConfigError(f"both {both} exist: unset one")
    return clusters[0][0] if clusters else None


def _clusters(environ: Mapping[str, str]) -> list[tuple[Cluster, str]]:
    """Return the cluster of each platform's document, and the document's name."""
    found = []
    if spec := environ.get(vertex.VARIABLE):
        found.append((vertex.parse(spec), vertex.VARIABLE))
    if (document := sagemaker.read(environ)) is not None:
        found.append((sagemaker.parse(document), "SageMaker's resourceconfig.json"))
    return found

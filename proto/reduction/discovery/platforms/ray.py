"""Ray: `ray:NAME` is a pool of reducers started by `worker_plugin.integrations.ray.start_pool`."""

from __future__ import annotations

from collections.abc import Mapping

from reduction.discovery.cluster import Cluster
from reduction.errors import ConfigError

#: Ray looks up named actors within a namespace. The pools' namespace differs from the training's.
NAMESPACE = "reduction-server"
#: Timeout for the pool's answer, in seconds.
ANSWER_S = 60.0


def find(text: str, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster, which the pool's actor knows. Connect to the Ray cluster if not yet connected.

    Raises:
        ConfigError: Ray is not installed, or there is no such pool.
    """
    name = text.partition(":")[2]
    if not name:
        raise ConfigError(f"reducers {text!r}: write ray:NAME")
    try:
        import ray
    except ImportError:
        raise ConfigError(f"reducers {text!r}: Ray is not installed") from None
    try:
        if not ray.is_initialized():
            ray.init(address="auto")
        actor = ray.get_actor(name, namespace=NAMESPACE)
        addresses = ray.get(actor.addresses.remote(), timeout=ANSWER_S)
    except Exception as error:  # Ray raises errors of many types, including built-in ones
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"reducers {text!r}: no such pool answers: {reason}") from None
    return Cluster("ray", tuple(addresses))

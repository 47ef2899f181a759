"""Ray Train: reducers as actors on the cluster's CPU nodes, started and stopped with the training.

    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=8, use_gpu=True),
        torch_config=ReductionConfig(reducers=8, label_selector={"pool": "cpu"}),
    )

`train` stays unchanged: `ray.train.torch.prepare_model` creates a DistributedDataParallel module, which averages
through the reducers (REDUCTION_AUTO). With `backend="reduction"` the process group does so instead, including for
HSDP. When an actor dies, the job continues with the remaining ones.

`start_pool` starts reducers that outlive a training. Any training of the Ray cluster finds them with
REDUCTION_REDUCERS=ray:NAME.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend
from reduction.discovery.platforms.ray import NAMESPACE
from reduction.discovery.schemes import scheme_of
from reduction.errors import ConfigError
from reduction.process.launch import start_reducer
from reduction.process.ready import close, wait_until_ready

#: How long a reducer may take to listen, in seconds, once Ray has placed its actor.
START_S = 60.0
#: How long Ray may take to place all actors, in seconds.
PLACE_S = 300.0
#: Grace period before a reducer that was told to end is killed, in seconds.
STOP_S = 10.0


@dataclass
class ReductionConfig(TorchConfig):
    """Ray Train's TorchConfig, with reducers. Rank 0 of the training finds them in its environment."""

    #: Number of actors, each with a reducer. One per node with workers gives the full gain.
    reducers: int = 1
    #: CPUs that Ray reserves for each.
    num_cpus: float = 1.0
    #: Further resources required by each, which determine where Ray places them.
    resources: dict[str, float] = field(default_factory=dict)
    #: Labels of the nodes for them.
    label_selector: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            ConfigError: it is less than 1.
        """
        if self.reducers < 1:
            raise ConfigError(f"reducers is {self.reducers}; it must be at least 1")
        with contextlib.suppress(AttributeError):  # some versions of Ray have none
            super().__post_init__()  # type: ignore[misc]

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        """See TorchConfig."""
        return ReductionBackend


class ReducerActor:
    """One reducer, in a separate process that ends with the actor's."""

    def __init__(self, token: str) -> None:
        bind = f"{ray.util.get_node_ip_address()}:0"
        self._address: str | None = None
        self._process = start_reducer(Path(__file__).parents[2], ["--bind", bind, "--processes", "1"], token)

    def address(self) -> str:
        """Wait until it serves, and return HOST:PORT."""
        if self._address is None:
            self._address = wait_until_ready(self._process, START_S)
        return self._address

    def stop(self) -> None:
        """Make it drain and end."""
        close(self._process, STOP_S)


class ReducerActors:
    """Reducers in actors, which end with the process that created them."""

    def __init__(self, token: str) -> None:
        self._actors: list[Any] = []
        self._token = token

    def start(
        self, count: int, num_cpus: float, resources: dict[str, float], label_selector: dict[str, str]
    ) -> list[str]:
        """Start more actors, with the resources that Ray reserves for each; return their addresses.

        Raises:
            GetTimeoutError: Ray could not place an actor.
        """
        options: dict[str, Any] = {"num_cpus": num_cpus, "resources": resources}
        if label_selector:
            options["label_selector"] = label_selector
        make = ray.remote(ReducerActor).options(**options)
        actors = [make.remote(self._token) for _ in range(count)]
        self._actors += actors
        addresses: list[str] = ray.get([actor.address.remote() for actor in actors], timeout=PLACE_S)
        return addresses

    def addresses(self) -> list[str]:
        """Return the addresses of the actors that still exist, and forget the others."""
        addresses: list[str] = []
        for actor in list(self._actors):
            try:
                addresses.append(ray.get(actor.address.remote(), timeout=START_S))
            except ray.exceptions.RayError:
                self._actors.remove(actor)
        return addresses

    def stop(self) -> None:
        """Make them drain and end."""
        actors, self._actors = self._actors, []
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait([actor.stop.remote() for actor in actors], num_returns=len(actors), timeout=STOP_S)
        for actor in actors:
            ray.kill(actor)


def start_pool(
    name: str,
    reducers: int = 1,
    *,
    token: str,
    num_cpus: float = 1.0,
    resources: dict[str, float] | None = None,
    label_selector: dict[str, str] | None = None,
) -> list[str]:
    """Start reducers that trainings find as `ray:NAME`, until `stop_pool`; return their addresses.

    Args:
        name: of the pool; no other live pool of the Ray cluster may have it.
        reducers: number of reducers.
        token: required of jobs; trainings read it from a file, see `token_file`.
        num_cpus: CPUs that Ray reserves for each.
        resources: further resources required by each, which determine where Ray places them.
        label_selector: labels of the nodes for them.

    Raises:
        ConfigError: `reducers` is less than 1, or `ray:NAME` cannot contain the name.
        ValueError: there is already a pool of this name.
        GetTimeoutError: Ray could not place a reducer.
    """
    if reducers < 1:
        raise ConfigError(f"reducers is {reducers}; it must be at least 1")
    if not name or scheme_of(f"ray:{name}") is None or "," in name:
        raise ConfigError(
            f"the name {name!r} is empty, a number or has a comma, so ray:NAME would not find it"
        )
    make = ray.remote(ReducerActors).options(name=name, namespace=NAMESPACE, lifetime="detached", num_cpus=0)
    pool = make.remote(token)
    try:
        addresses: list[str] = ray.get(
            pool.start.remote(reducers, num_cpus, resources or {}, label_selector or {})
        )
    except BaseException:
        ray.kill(pool)
        raise
    return addresses


def stop_pool(name: str) -> None:
    """Stop the reducers of a pool.

    Raises:
        ValueError: there is no pool of this name.
    """
    pool = ray.get_actor(name, namespace=NAMESPACE)
    ray.get(pool.stop.remote())
    ray.kill(pool)


class ReductionBackend(_TorchBackend):
    """Starts the actors before the workers' process group, and stops them after it."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(32)
        self._actors = ReducerActors(self._token)

    def on_start(self, worker_group: Any, backend_config: ReductionConfig) -> None:  # type: ignore[override]
        """Start the actors, tell the workers of them, and start the process group.

        Ray calls it again after a failure of a worker. Actors that still exist stay; new ones replace those that
        are gone.

        Raises:
            GetTimeoutError: Ray could not place an actor.
        """
        config, addresses = backend_config, self._actors.addresses()
        if (missing := config.reducers - len(addresses)) > 0:
            addresses += self._actors.start(missing, config.num_cpus, config.resources, config.label_selector)
        auto = config.backend != "reduction"
        worker_group.execute(_use_reducers, ",".join(addresses), self._token, auto)
        super().on_start(worker_group, config)

    def on_shutdown(self, worker_group: Any, backend_config: ReductionConfig) -> None:  # type: ignore[override]
        """Stop the process group, and then the actors."""
        super().on_shutdown(worker_group, backend_config)
        self._actors.stop()


def _use_reducers(addresses: str, token: str, auto: bool) -> None:
    """Set the environment of a worker. Runs on the worker."""
    import os
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="reduction-token-")  # only its owner may read it
    with open(descriptor, "w") as file:
        file.write(f"*:{token}\n")
    os.environ["REDUCTION_REDUCERS"] = addresses
    os.environ["REDUCTION_TOKEN_FILE"] = path
    if auto:
        from worker_plugin.integrations.auto import install

        install("ddp")

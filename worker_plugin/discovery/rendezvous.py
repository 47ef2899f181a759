"""How the ranks agree on the job's name, on the reducers and on the nodes, through the process group's store."""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from reduction.errors import ConfigError, ReductionError
from torch.distributed.distributed_c10d import PrefixStore, Store

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import roll_call
from worker_plugin.discovery.addresses import configured, names_of, resolve
from worker_plugin.discovery.embedded import EmbeddedReducer, loopback_id
from worker_plugin.discovery.nodes import Entry, Node, Verdict
from worker_plugin.discovery.nodes import decide as decide_nodes
from worker_plugin.transports.security import OPEN, Access, access_of, private_access

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job meets."""

    job: str
    addresses: tuple[str, ...]
    access: Access = OPEN
    embedded: EmbeddedReducer | None = None
    #: DNS names whose addresses are reducers, and those of `addresses` that they stood for at the start.
    names: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()

    def stop(self) -> None:
        """End what was started for it."""
        if self.embedded is not None:
            self.embedded.stop()


@dataclass(frozen=True, slots=True)
class Word:
    """What a rank says of itself to rank 0."""

    #: The same on two ranks just if they can meet on loopback.
    host_id: str
    #: The reducers that it was told of.
    reducers: list[str] | None
    #: None if it has no `local_group`.
    entry: Entry | None

    @classmethod
    def of(cls, text: str) -> Word:
        """Return the word of a `to_text`."""
        fields = json.loads(text)
        entry = fields.pop("entry")
        return cls(**fields, entry=None if entry is None else Entry(**entry))

    def to_text(self) -> str:
        """Return what goes into the store."""
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class Nodes:
    """What ranks with a `local_group` agree on."""

    place: Place
    verdict: Verdict
    #: This rank's; None in flat mode.
    node: Node | None
    #: For what the ranks of a node have to tell each other: no other communicator has used it.
    store: Store


class Meeting:
    """One communicator's corner of the store, where rank 0 says for all what the job is and where its reducers are.

    The n-th communicator of a name that needs one meets the n-th of the other ranks.
    """

    def __init__(self, config: PluginConfig, store: Store | None, world_size: int) -> None:
        """Take a corner if there is somebody to meet. On the thread of the first collective: all ranks count alike."""
        is_needed = store is not None and world_size > 1
        # By name: states of several jobs may be used first in another order on every rank.
        purpose = "meeting" if config.job is None else f"meeting of {config.job}"
        self._corner = roll_call.take_corner(store, purpose) if store is not None and is_needed else None

    def agree(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """Return job name and reducer addresses; blocks until all ranks are there, or too late.

        Raises:
            ReductionError: a rank did not come, settings contradict each other, or no reducer can be embedded.
        """
        if self._corner is not None:
            return self._meet(self._corner, config, rank, world_size, None).place
        if world_size > 1:
            _check_alone(config, configured(config))
        return _decide(config, {})

    def agree_on_nodes(self, config: PluginConfig, rank: int, world_size: int, entry: Entry) -> Nodes:
        """Return what `agree` does, and which ranks are a node. Only with a store, and if there are others.

        Raises:
            ReductionError: as `agree`; or the ranks cannot be nodes as they want to, see `nodes.decide`.
        """
        assert self._corner is not None
        return self._meet(self._corner, config, rank, world_size, entry)

    def fall_back(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """Return the address of a reducer that rank 0 starts now, because none is left; blocks like `agree`.

        Raises:
            ReductionError: a rank did not come, or runs on another host.
        """
        place = Place(config.job or "", ())  # the job has its name already

        def decide(words: Mapping[int, Word]) -> Place:
            return _embedded(place, words, "no reducer is left")

        if self._corner is None:
            return decide({})
        return self._meet(self._corner, config, rank, world_size, None, decide).place

    def _meet(
        self,
        corner: roll_call.Corner,
        config: PluginConfig,
        rank: int,
        world_size: int,
        entry: Entry | None,
        decide: Callable[[Mapping[int, Word]], Place] | None = None,
    ) -> Nodes:
        """Have all ranks say their word, and rank 0 decide for all; by `_decide` if nothing else is said."""
        wanted = configured(config)
        word = Word(loopback_id(), None if wanted is None else list(wanted), entry)
        store = corner.open(config.join_timeout_s)
        if rank == 0:
            decide = decide or partial(_decide, config)
            place, verdict, nonce = _lead(store, config, world_size, word, decide)
        else:
            answer, nonce = roll_call.attend(store, rank, word.to_text(), config)
            place, verdict = _from_text(answer, config)
        if verdict.size == 1:
            return Nodes(place, verdict, None, store)
        index, local_rank = divmod(rank, verdict.size)
        first = index * verdict.size
        words = [Word.of(roll_call.word_of(store, nonce, first + other)) for other in range(verdict.size)]
        entries = tuple(one.entry for one in words if one.entry is not None)
        node = Node(index, world_size // verdict.size, local_rank, entries)
        return Nodes(place, verdict, node, PrefixStore(nonce, store))


def _lead(
    store: Store,
    config: PluginConfig,
    world_size: int,
    own: Word,
    decide: Callable[[Mapping[int, Word]], Place],
) -> tuple[Place, Verdict, str]:
    """Be rank 0: return what it decides from all ranks' words, its own first, and the roll call's nonce."""
    call = roll_call.RollCall(store, own.to_text())
    try:
        said = call.hear(world_size, config)
        words = {0: own} | {rank: Word.of(said[rank]) for rank in sorted(said)}
        verdict = decide_nodes([word.entry for word in words.values()])
        place = decide(words)
    except ReductionError as error:
        call.refuse(error)
        raise
    call.answer(_to_text(place, verdict))
    return place, verdict, call.nonce


def _to_text(place: Place, verdict: Verdict) -> str:
    answer = {
        "job": place.job,
        "addresses": place.addresses,
        "names": place.names,
        "looked_up": place.looked_up,
        # Who can read the store could be a rank anyway.
        "token": "" if place.embedded is None else place.embedded.token,
        "nodes": dataclasses.astuple(verdict),
    }
    return json.dumps(answer)


def _from_text(text: str, config: PluginConfig) -> tuple[Place, Verdict]:
    answer = json.loads(text)
    job, token = answer["job"], answer["token"]
    access = private_access(token) if token else access_of(config, job)
    addresses, names, looked_up = (tuple(answer[name]) for name in ("addresses", "names", "looked_up"))
    return Place(job, addresses, access, None, names, looked_up), Verdict(*answer["nodes"])


def _decide(config: PluginConfig, words: Mapping[int, Word]) -> Place:
    """Return what rank 0 says; what it is told counts for all."""
    wanted, job = configured(config), config.job or f"run-{uuid.uuid4()}"
    others = {rank: word.reducers for rank, word in words.items() if word.reducers is not None}
    if wanted is None:
        for rank, reducers in others.items():
            raise ConfigError(
                f"rank {rank} is told of reducers ({', '.join(reducers)}), rank 0 of none: rank 0's settings count, "
                f"so set reducers= or REDUCTION_REDUCERS there too"
            )
        place = _embedded(Place(job, ()), words, "no reducers are configured")
        log.info("no reducers are configured: rank 0 runs one at %s for this job", place.addresses[0])
        return place
    if different := [rank for rank, reducers in others.items() if set(reducers) != set(wanted)]:
        log.warning(
            "rank %d is told of other reducers (%s) than rank 0 (%s), whose settings count",
            different[0],
            ", ".join(others[different[0]]),
            ", ".join(wanted),
        )
    access = access_of(config, job)
    addresses, looked_up = resolve(wanted, config)
    return Place(job, addresses, access, None, names_of(wanted), looked_up)


def _check_alone(config: PluginConfig, addresses: tuple[str, ...] | None) -> None:
    """Refuse settings that leave something to agree on, if there is no store for it."""
    if config.fallback is not None:
        raise ConfigError(
            f"fallback={config.fallback!r} needs a way to tell all ranks: initialise torch.distributed"
        )
    if config.job is None:
        raise ConfigError("no job name: pass job= or set REDUCTION_JOB, the same on all ranks")
    if addresses is None:
        raise ConfigError(
            "no reducers are configured: pass reducers=, set REDUCTION_REDUCERS, or initialise "
            "torch.distributed so that rank 0 can start one for all ranks of this host"
        )


def _embedded(place: Place, words: Mapping[int, Word], why: str) -> Place:
    """Start a reducer if everybody can reach it."""
    for rank, word in words.items():
        if word.host_id != loopback_id():
            raise ConfigError(
                f"{why}, and rank {rank} is on another host than rank 0: start "
                f"`reducer serve` somewhere and pass reducers= or set REDUCTION_REDUCERS"
            )
    embedded = EmbeddedReducer()
    return replace(
        place, addresses=(embedded.address,), access=private_access(embedded.token), embedded=embedded
    )

"""Rank 0 gathers a string from every rank and broadcasts one to all of them, through a store.

The store may contain data from earlier lives of the job: torchrun's store outlives a restart, and a rank of
the new life can be faster than rank 0. So no value is trusted that an earlier life could have written. All
keys but the first contain a nonce of a process of this life.

    rank r   arrived/r := nonce of r               rank 0 rereads it until r has answered
    rank 0   call/(nonce of r) := nonce of 0
    rank r   answer/(nonce of 0)/r := its text
    rank 0   broadcast/(nonce of 0) := its text    after all have answered, or after it gave up
"""

from __future__ import annotations

import uuid
import weakref
from collections import Counter
from dataclasses import dataclass

from reduction.errors import ReductionError, from_name
from torch.distributed.distributed_c10d import Store

from worker_plugin.config import PluginConfig
from worker_plugin.core.words import some_of
from worker_plugin.discovery.bounded_store import EXTRA_S, BoundedStore
from worker_plugin.discovery.waiting_for_ranks import wait_for

#: The first word of a broadcast that is not an error. An error starts with its name, because some errors have no code
#: on the wire.
_OK = "ok"
#: Number of prefixes of each store reserved for each purpose. Every process group has its own store. One count for the
#: whole process would not work, because the process may have been in groups that other ranks were not in.
_counts: weakref.WeakKeyDictionary[Store, Counter[str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class StorePrefix:
    """The prefix of the store keys of one communicator."""

    store: Store
    prefix: str

    def open(self, config: PluginConfig) -> BoundedStore:
        """Return a new client of the store, below the prefix.

        Raises:
            WorkerLost: see `BoundedStore.ask`.
        """
        return BoundedStore.connect(self.store, config).below(self.prefix)


def reserve_prefix(store: Store, purpose: str) -> StorePrefix:
    """Return the next prefix for a purpose.

    All ranks reserve prefixes for a purpose in the same order, so the n-th prefix is the same on each rank.
    """
    counts = _counts.setdefault(store, Counter())
    counts[purpose] += 1
    return StorePrefix(store, f"reduction-server/{purpose}/{counts[purpose]}")


class RollCall:
    """Rank 0's part in a roll call."""

    def __init__(self, store: BoundedStore, text: str = "") -> None:
        """Begin a roll call; `text` is rank 0's own answer."""
        self._store = store
        #: Identifies this roll call. No other life of the job has used it.
        self.nonce = uuid.uuid4().hex
        store.set(f"answer/{self.nonce}/0", text)

    def gather(self, world_size: int, config: PluginConfig) -> dict[int, str]:
        """Return the answers of ranks 1 to `world_size` - 1.

        Raises:
            ReductionError: see `wait_for`.
        """
        answers: dict[int, str] = {}
        missing, called = set(range(1, world_size)), set[bytes]()

        def look(store: Store) -> str:
            for rank in sorted(missing):
                answer, arrived = f"answer/{self.nonce}/{rank}", f"arrived/{rank}"
                if store.check([answer]):
                    answers[rank] = store.get(answer).decode()
                    missing.remove(rank)
                elif store.check([arrived]) and (nonce := store.get(arrived)) not in called:
                    store.set(f"call/{nonce.decode()}", self.nonce)
                    called.add(nonce)
            return _names(missing)

        wait_for(self._store, look, config)
        return answers

    def broadcast(self, text: str) -> None:
        """Send a string to all ranks that were called."""
        self._store.set(f"broadcast/{self.nonce}", f"{_OK} {text}")

    def broadcast_error(self, error: ReductionError) -> None:
        """Make `answer_call` raise this error on all ranks that were called."""
        self._store.set(f"broadcast/{self.nonce}", f"{type(error).__name__} {error}")


def answer_call(store: BoundedStore, rank: int, text: str, config: PluginConfig) -> tuple[str, str]:
    """Act as another rank: answer, and return rank 0's broadcast and nonce.

    Raises:
        ReductionError: rank 0 has broadcast it, or see `wait_for`.
    """
    own_nonce = uuid.uuid4().hex
    store.set(f"arrived/{rank}", own_nonce)
    nonce = _wait(store, f"call/{own_nonce}", config)
    store.set(f"answer/{nonce}/{rank}", text)
    # Rank 0 knows which ranks are missing, so its error is more informative than this rank's.
    kind, _, broadcast = _wait(store, f"broadcast/{nonce}", config, EXTRA_S).partition(" ")
    if kind != _OK:
        raise from_name(kind, broadcast)
    return broadcast, nonce


def answer_of(store: BoundedStore, nonce: str, rank: int) -> str:
    """Return the answer of a rank, after the broadcast; rank 0's answer is its own text."""
    return store.get(f"answer/{nonce}/{rank}")


def _wait(store: BoundedStore, key: str, config: PluginConfig, extra_s: float = 0.0) -> str:
    wait_for(store, lambda raw: "" if raw.check([key]) else "rank 0", config, extra_s=extra_s)
    return store.get(key)


def _names(ranks: set[int]) -> str:
    names = some_of([str(rank) for rank in sorted(ranks)])
    return f"rank{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""

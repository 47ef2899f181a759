"""Rank 0 hears a word from every rank, and answers all; through a store that may hold what earlier lives left there.

torchrun's store outlives a restart, and a rank of the new life can be faster than rank 0. So nothing is read under a
key that an earlier life could have written: every key but one has the nonce of the one who waits for it.

    rank r   guest/r := its nonce                  rank 0 looks there again and again, until r is here
    rank 0   seen/NONCE OF r := its own nonce
    rank r   here/NONCE OF 0/r := its word
    rank 0   answer/NONCE OF 0 := the answer       when all are here, or it gave up
"""

from __future__ import annotations

import datetime
import uuid
import weakref
from collections import Counter
from dataclasses import dataclass

from reduction.errors import ReductionError, from_name
from torch.distributed.distributed_c10d import PrefixStore, Store

from worker_plugin.config import PluginConfig
from worker_plugin.core.words import some_of
from worker_plugin.discovery.waiting_for_ranks import wait_for

#: How an answer begins that is no error; else by the error's name: not all have a code on the wire.
_WELL = "well"
#: How much longer than rank 0 the others wait for its answer, in seconds.
LEADER_S = 2.0


#: How many corners of each store, which is one per process group, have been taken for what. Not one count for the
#: process: it may have been in groups that other ranks were not in.
_counts: weakref.WeakKeyDictionary[Store, Counter[str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Corner:
    """A part of a process group's store where the ranks of one communicator meet."""

    store: Store
    prefix: str

    def open(self, timeout_s: float) -> Store:
        """Return a client of our own: a blocking get on the shared one would stall the training thread's use."""
        store: Store = self.store.clone()  # type: ignore[attr-defined]  # not in the stubs
        store.set_timeout(datetime.timedelta(seconds=timeout_s))
        return PrefixStore(self.prefix, store)


def take_corner(store: Store, purpose: str) -> Corner:
    """Return the next one: the n-th that is taken for a purpose meets the n-th of the other ranks."""
    counts = _counts.setdefault(store, Counter())
    counts[purpose] += 1
    return Corner(store, f"reduction-server/{purpose}/{counts[purpose]}")


class RollCall:
    """Rank 0's part."""

    def __init__(self, store: Store, word: str = "") -> None:
        self._store = store
        #: Of this call; a name that no other life has used.
        self.nonce = uuid.uuid4().hex
        store.set(f"here/{self.nonce}/0", word)

    def hear(self, world_size: int, config: PluginConfig) -> dict[int, str]:
        """Return the words of ranks 1 to `world_size` - 1.

        Raises:
            ReductionError: see `wait_for`.
        """
        words: dict[int, str] = {}
        missing, seen = set(range(1, world_size)), set[bytes]()

        def look() -> str:
            for rank in sorted(missing):
                here, guest = f"here/{self.nonce}/{rank}", f"guest/{rank}"
                if self._store.check([here]):
                    words[rank] = self._store.get(here).decode()
                    missing.remove(rank)
                elif self._store.check([guest]) and (nonce := self._store.get(guest)) not in seen:
                    self._store.set(f"seen/{nonce.decode()}", self.nonce)
                    seen.add(nonce)
            return _names(missing)

        wait_for(look, config)
        return words

    def answer(self, text: str) -> None:
        """Let all that were heard know."""
        self._store.set(f"answer/{self.nonce}", f"{_WELL} {text}")

    def refuse(self, error: ReductionError) -> None:
        """Let `attend` raise this error on all that were heard."""
        self._store.set(f"answer/{self.nonce}", f"{type(error).__name__} {error}")


def attend(store: Store, rank: int, word: str, config: PluginConfig) -> tuple[str, str]:
    """Be another rank: return rank 0's answer, and its nonce.

    Raises:
        ReductionError: rank 0's; or see `wait_for`.
    """
    own = uuid.uuid4().hex
    store.set(f"guest/{rank}", own)
    nonce = _wait(store, f"seen/{own}", config)
    store.set(f"here/{nonce}/{rank}", word)
    # Rank 0 is there, and knows whom it waits for: its error says more than one of our own would.
    kind, _, text = _wait(store, f"answer/{nonce}", config, LEADER_S).partition(" ")
    if kind != _WELL:
        raise from_name(kind, text)
    return text, nonce


def word_of(store: Store, nonce: str, rank: int) -> str:
    """Return what a rank that was heard, or rank 0, has said."""
    word: bytes = store.get(f"here/{nonce}/{rank}")
    return word.decode()


def _wait(store: Store, key: str, config: PluginConfig, extra_s: float = 0.0) -> str:
    wait_for(lambda: "" if store.check([key]) else "rank 0", config, extra_s=extra_s)
    value: bytes = store.get(key)
    return value.decode()


def _names(ranks: set[int]) -> str:
    names = some_of([str(rank) for rank in sorted(ranks)])
    return f"rank{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""

"""What the workers of an elastic job say of themselves in the lobby, as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from reduction.errors import MalformedFrame
from reduction.limits import LOBBY_ENTRIES_MAX
from reduction.model import LobbyEntry
from reduction.text import load_json

from worker_plugin.elastic.membership.lineage import Generation, Worker


@dataclass(frozen=True, slots=True)
class Offer:
    """A worker wants to give newcomers the training (donation.py)."""

    #: Random; also that of the generation with which the newcomers are taken in.
    id: str
    #: The donor and then the newcomers.
    workers: tuple[Worker, ...]

    @property
    def newcomers(self) -> tuple[Worker, ...]:
        """Those who get it."""
        return self.workers[1:]


@dataclass(frozen=True, slots=True)
class Said:
    """What one worker has said last."""

    worker: Worker
    host: str
    #: What must be the same on all workers, as a string.
    settings: str
    #: The highest number of a generation that it has joined, and the id of that one; 0: none.
    number: int = 0
    generation: str = ""
    #: Whether it looks for the next generation, because its last one has ended.
    is_waiting: bool = False
    #: What it proposes to the others.
    proposal: Generation | None = None
    #: Rises with everything that it says.
    count: int = 0
    #: Whether it has gone, as every reducer says that can be asked, or it itself.
    is_gone: bool = False
    #: What it offers to newcomers.
    offer: Offer | None = None
    #: The id of the last offer that has failed, as its newcomer or its donor sees it.
    missed: str = ""
    #: The nonces of newcomers to which it cannot give the training, and why.
    refused: tuple[str, ...] = ()
    refusal: str = ""
    #: What it has found on its host of a process that had its rank, and has ended (memory.py): its nonce, and the
    #: highest number of a generation that it had joined.
    former: tuple[str, int] | None = None
    #: Whether it joins no generation any more; the last that it says.
    has_ended: bool = False

    @property
    def replaced(self) -> Worker | None:
        """Whose place it has taken, if it knows that this one has ended."""
        return None if self.former is None else Worker(self.worker.rank, self.former[0])

    @property
    def ended(self) -> dict[Worker, int]:
        """Who has ended, as it knows; see `Lineage.ended`."""
        ended = {self.worker: self.number} if self.has_ended else {}
        if self.former is not None and self.replaced is not None:
            ended[self.replaced] = self.former[1]
        return ended

    def to_entry(self) -> bytes:
        """Return the entry for the lobby."""
        fields: dict[str, Any] = {
            "rank": self.worker.rank,
            "nonce": self.worker.nonce,
            "host": self.host,
            "settings": self.settings,
            "number": self.number,
            "generation": self.generation,
            "waiting": self.is_waiting,
            "count": self.count,
        }
        if self.proposal is not None:
            fields["proposal"] = generation_to_fields(self.proposal)
        if self.offer is not None:
            fields["offer"] = {"id": self.offer.id, "workers": _workers_to_fields(self.offer.workers)}
        if self.missed:
            fields["missed"] = self.missed
        if self.refused:
            fields |= {"refused": self.refused, "refusal": self.refusal}
        if self.former is not None:
            fields["former"] = self.former
        if self.has_ended:
            fields["ended"] = True
        return json.dumps(fields).encode()


def generation_to_fields(generation: Generation) -> dict[str, Any]:
    """Return a generation as JSON knows it."""
    workers = _workers_to_fields(generation.workers)
    newcomers = [worker.rank for worker in generation.newcomers]
    return {"number": generation.number, "id": generation.id, "workers": workers, "newcomers": newcomers}


def generation_from_fields(fields: Any) -> Generation:
    """Return a generation from what `generation_to_fields` made of it.

    Raises:
        MalformedFrame: it is none.
    """
    try:
        workers = _workers_from_fields(fields["workers"])
        newcomers = tuple(worker for worker in workers if worker.rank in fields["newcomers"])
        generation = Generation(int(fields["number"]), str(fields["id"]), workers, newcomers)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise MalformedFrame(f"a worker proposes what is not a generation: {error!r}") from None
    ranks = [worker.rank for worker in generation.workers]
    if generation.number < 1 or len(newcomers) >= len(ranks) or ranks != sorted(set(ranks)):
        raise MalformedFrame(f"a worker proposes generation {generation.number} of ranks {ranks}")
    return generation


def _workers_to_fields(workers: Iterable[Worker]) -> list[list[Any]]:
    return [[worker.rank, worker.nonce] for worker in workers]


def _workers_from_fields(fields: Any) -> tuple[Worker, ...]:
    return tuple(Worker(int(rank), str(nonce)) for rank, nonce in fields)


def _offer_from_fields(fields: Any) -> Offer:
    workers = _workers_from_fields(fields["workers"])
    if len(set(workers)) != len(workers) or len(workers) < 2:
        raise MalformedFrame(f"a worker offers the training to {workers[1:]}")
    return Offer(str(fields["id"]), workers)


@lru_cache(maxsize=2 * LOBBY_ENTRIES_MAX)  # each entry is looked at whenever one has changed
def said_from_entry(data: bytes) -> Said:
    """Return what a worker says.

    Raises:
        MalformedFrame: it is nothing that a worker says.
    """
    try:
        fields = load_json(data)
        proposal, offer, former = (fields.get(name) for name in ("proposal", "offer", "former"))
        return Said(
            Worker(int(fields["rank"]), str(fields["nonce"])),
            str(fields["host"]),
            str(fields["settings"]),
            int(fields["number"]),
            str(fields["generation"]),
            bool(fields["waiting"]),
            None if proposal is None else generation_from_fields(proposal),
            int(fields["count"]),
            offer=None if offer is None else _offer_from_fields(offer),
            missed=str(fields.get("missed", "")),
            refused=tuple(map(str, fields.get("refused", ()))),
            refusal=str(fields.get("refusal", "")),
            former=None if former is None else (str(former[0]), int(former[1])),
            has_ended=bool(fields.get("ended")),
        )
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise MalformedFrame(f"an entry of the lobby is not what a worker says: {error!r}") from None


def merge(answers: Iterable[Iterable[LobbyEntry]]) -> tuple[Mapping[str, Said], Sequence[str]]:
    """Return what each worker has said last, by its nonce, given what several reducers say.

    A worker has gone if no reducer sees it, or if it has said so itself.

    Returns:
        What the workers say, and what is wrong with the entries that are not what a worker says.
    """
    latest: dict[str, Said] = {}
    there: set[str] = set()
    faults: list[str] = []
    for entries in answers:
        for entry in entries:
            try:
                said = said_from_entry(entry.entry)
            except MalformedFrame as error:
                faults.append(str(error))
                continue
            nonce = said.worker.nonce
            if not entry.is_gone:
                there.add(nonce)
            if nonce not in latest or latest[nonce].count < said.count:
                latest[nonce] = said
    there -= {nonce for nonce, said in latest.items() if said.has_ended}
    heard = {nonce: said if nonce in there else _gone(said) for nonce, said in sorted(latest.items())}
    return heard, faults


def _gone(said: Said) -> Said:
    return replace(said, proposal=None, offer=None, is_gone=True)

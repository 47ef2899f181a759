"""What the workers of an elastic job say about themselves in the lobby, converted to and from JSON."""

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
    """A worker's offer to give newcomers the training (donation.py)."""

    #: Random; also the id of the generation that admits the newcomers.
    id: str
    #: The donor, followed by the newcomers.
    workers: tuple[Worker, ...]

    @property
    def newcomers(self) -> tuple[Worker, ...]:
        """The workers that get the training."""
        return self.workers[1:]


@dataclass(frozen=True, slots=True)
class Said:
    """The last statement of one worker."""

    worker: Worker
    host: str
    #: Everything that must be the same on all workers, as a string.
    settings: str
    #: The highest number of a generation that it has joined, and the id of that generation; 0: none.
    number: int = 0
    generation: str = ""
    #: Whether it is looking for the next generation because its last one has ended.
    is_waiting: bool = False
    #: Its proposal to the others.
    proposal: Generation | None = None
    #: Increases with each statement.
    count: int = 0
    #: Whether it is gone, according to itself or to every reducer that can be asked.
    is_gone: bool = False
    #: Its offer to newcomers.
    offer: Offer | None = None
    #: The id of the last offer that failed, as reported by its newcomer or its donor.
    missed: str = ""
    #: The nonces of newcomers that it cannot give the training, and the reason.
    refused: tuple[str, ...] = ()
    refusal: str = ""
    #: What it found on its host about an ended process that had its rank (predecessor.py): its nonce, and the
    #: highest number of a generation that it had joined.
    former: tuple[str, int] | None = None
    #: Whether it will join no further generation. This is its final statement.
    has_ended: bool = False

    @property
    def replaced(self) -> Worker | None:
        """The worker it has replaced, if it knows that this worker has ended."""
        return None if self.former is None else Worker(self.worker.rank, self.former[0])

    @property
    def ended(self) -> dict[Worker, int]:
        """The workers it knows to have ended; see `Lineage.ended`."""
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
    """Return a generation as JSON fields."""
    workers = _workers_to_fields(generation.workers)
    newcomers = [worker.rank for worker in generation.newcomers]
    return {"number": generation.number, "id": generation.id, "workers": workers, "newcomers": newcomers}


def generation_from_fields(fields: Any) -> Generation:
    """Return the generation that `generation_to_fields` converted.

    Raises:
        MalformedFrame: the fields do not describe a generation.
    """
    try:
        workers = _workers_from_fields(fields["workers"])
        newcomers = tuple(worker for worker in workers if worker.rank in fields["newcomers"])
        generation = Generation(int(fields["number"]), str(fields["id"]), workers, newcomers)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise MalformedFrame(f"a worker proposes something that is not a generation: {error!r}") from None
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


@lru_cache(maxsize=2 * LOBBY_ENTRIES_MAX)  # all entries are read again whenever one has changed
def said_from_entry(data: bytes) -> Said:
    """Return the statement of a worker.

    Raises:
        MalformedFrame: the entry is not a worker's statement.
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
        raise MalformedFrame(f"a lobby entry is not a worker's message: {error!r}") from None


def merge(answers: Iterable[Iterable[LobbyEntry]]) -> tuple[Mapping[str, Said], Sequence[str]]:
    """Merge the answers of several reducers into the last statement of each worker, by nonce.

    A worker is gone if no reducer sees it, or if it has said so itself.

    Returns:
        The statements of the workers, and the faults of entries that are not a worker's statement.
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

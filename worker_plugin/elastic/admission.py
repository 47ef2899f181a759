"""Whom the first worker of an elastic job takes in, and when."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reduction.errors import WorkerLost

from worker_plugin.elastic.clients import LOSSES
from worker_plugin.elastic.donation import Donation
from worker_plugin.elastic.entries import Offer
from worker_plugin.elastic.lineage import Generation, Worker
from worker_plugin.elastic.training import Training
from worker_plugin.process import log_setup

log = logging.getLogger(__name__)


class Admission:
    """Gives newcomers the training, and says when they have it. For the thread that trains.

    Args:
        donate: begins a donation; see `Elastic.donate`.
    """

    def __init__(self, donate: Callable[[Offer, Training], Donation]) -> None:
        self._donate = donate
        self._donation: Donation | None = None
        #: How often newcomers did not take what they were given, by nonce.
        self._failures: dict[str, int] = {}

    def tend(self, present: Generation, newcomers: Sequence[Worker], training: Training) -> Generation | None:
        """Return the generation to change to now, if some newcomers are ready; called in a checkpoint.

        Args:
            present: the generation whose first worker this one is.
            newcomers: that want to be taken in now.
            training: as it is now.

        Raises:
            ReductionError: the training cannot be given to others.
        """
        donation = self._donation
        if donation is not None and donation.is_stalled:
            donation.abandon(WorkerLost("newcomers do not take the state"))
        if donation is not None and donation.has_ended:
            self._note_end(donation)
            donation = None
        if donation is None:
            if chosen := self._choose(present, newcomers):
                offer = Offer(secrets.token_hex(8), (present.workers[0], *chosen))
                self._donation = self._donate(offer, training)
            return None
        if not donation.is_ready:
            return None
        new = donation.offer.newcomers
        if {worker.rank for worker in new} & {worker.rank for worker in present.workers}:
            donation.abandon(WorkerLost("a newcomer's rank is taken"))
            return None
        log_setup.announce(log, f"taking in ranks {[worker.rank for worker in new]}")
        workers = tuple(sorted((*present.workers, *new)))
        return Generation(present.number + 1, donation.offer.id, workers, new)

    def finish(self, last: Mapping[str, Any]) -> None:
        """Give the newcomers of the generation that `tend` has returned the rest."""
        donation, self._donation = self._donation, None
        assert donation is not None  # `tend` has returned its generation
        donation.finish(last)
        if donation.error is not None:
            self._note_end(donation)

    def _choose(self, present: Generation, newcomers: Sequence[Worker]) -> list[Worker]:
        """Return those newcomers that should be given the training together, one for each rank."""
        ranks = {worker.rank for worker in present.workers}
        by_rank: dict[int, Worker] = {}
        for worker in sorted(newcomers, key=lambda one: (self._failures.get(one.nonce, 0), one)):
            if worker.rank not in ranks:
                by_rank.setdefault(worker.rank, worker)
        fresh = [worker for _, worker in sorted(by_rank.items()) if worker.nonce not in self._failures]
        # One that has failed may have made the others fail, so it is tried alone.
        return fresh or list(by_rank.values())[:1]

    def _note_end(self, donation: Donation) -> None:
        self._donation = None
        error = donation.error
        if error is not None and not isinstance(error, LOSSES):
            raise error
        ranks = [worker.rank for worker in donation.offer.newcomers]
        log.warning("ranks %s did not take the state: %s", ranks, error)
        for worker in donation.offer.newcomers:
            self._failures[worker.nonce] = self._failures.get(worker.nonce, 0) + 1

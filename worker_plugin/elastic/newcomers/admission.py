"""Which newcomers the first worker of an elastic job admits, and when."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reduction.errors import ConfigError, LocalProtocolError, ReductionError, WorkerLost
from reduction.log_limit import LINES

from worker_plugin.elastic.clients import LOSSES
from worker_plugin.elastic.membership.entries import Offer
from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.newcomers.donation import Donation
from worker_plugin.elastic.newcomers.training import Training
from worker_plugin.process import log_setup

log = logging.getLogger(__name__)

#: How long to start no donation after an error of our own, in seconds. The error may recur each time.
AGAIN_S = 5.0


class Admission:
    """Gives newcomers the training, and reports when they have it. For the training thread.

    Args:
        donate: begins a donation; see `Elastic.donate`.
        refuse: tells newcomers why they get nothing; see `Elastic.refuse`.
    """

    def __init__(
        self,
        donate: Callable[[Offer, Training], Donation],
        refuse: Callable[[Sequence[Worker], ReductionError], None],
    ) -> None:
        self._donate, self._refuse = donate, refuse
        self._donation: Donation | None = None
        #: Number of times newcomers did not take what they were given, by nonce.
        self._failures: dict[str, int] = {}
        self._again_at = 0.0

    def tend(self, present: Generation, newcomers: Sequence[Worker], training: Training) -> Generation | None:
        """Return the generation to change to now, if some newcomers are ready. Call this in a checkpoint.

        Args:
            present: the generation whose first worker is this one.
            newcomers: the workers that want to be admitted now.
            training: in its current state.
        """
        donation = self._donation
        if donation is not None and donation.has_ended:
            self._note_end(donation)
            donation = None
        if donation is None:
            self._begin(present, newcomers, training)
            return None
        new = donation.offer.newcomers
        if {worker.rank for worker in new} & {worker.rank for worker in present.workers}:
            donation.abandon(WorkerLost("a newcomer's rank is taken"))
        elif not _may_come(present, new):
            donation.abandon(WorkerLost("there are more newcomers than remaining workers"))
        elif not donation.is_of(training):
            donation.abandon(WorkerLost("state.sync got a different model or optimizer than before"))
        elif donation.is_stalled:
            donation.abandon(WorkerLost("newcomers are not taking the state"))
        elif donation.is_ready:
            return self._take_in(present, new)
        return None

    def _take_in(self, present: Generation, new: Sequence[Worker]) -> Generation:
        assert self._donation is not None  # it is ready
        log_setup.announce(log, f"taking in ranks {[worker.rank for worker in new]}")
        workers = tuple(sorted((*present.workers, *new)))
        return Generation(present.number + 1, self._donation.offer.id, workers, tuple(new))

    def finish(self, last: Mapping[str, Any]) -> None:
        """Send the remaining data to the newcomers of the generation that `tend` returned."""
        donation, self._donation = self._donation, None
        assert donation is not None  # `tend` has returned its generation
        donation.finish(last)
        if donation.error is not None:
            self._note_end(donation)

    def _begin(self, present: Generation, newcomers: Sequence[Worker], training: Training) -> None:
        chosen = self._choose(present, newcomers)
        if not chosen or time.monotonic() < self._again_at:
            return
        offer = Offer(secrets.token_hex(8), (present.workers[0], *chosen))
        try:
            self._donation = self._donate(offer, training)
        except ReductionError as error:
            self._note_failure(offer, error)

    def _choose(self, present: Generation, newcomers: Sequence[Worker]) -> list[Worker]:
        """Return the newcomers that should get the training together, one for each rank."""
        ranks = {worker.rank for worker in present.workers}
        by_rank: dict[int, Worker] = {}
        for worker in sorted(newcomers, key=lambda one: (self._failures.get(one.nonce, 0), one)):
            if worker.rank not in ranks:
                by_rank.setdefault(worker.rank, worker)
        fresh = [worker for _, worker in sorted(by_rank.items()) if worker.nonce not in self._failures]
        # A newcomer that failed may have made the others fail, so it is tried alone.
        chosen = fresh or list(by_rank.values())[:1]
        while not _may_come(present, chosen):
            chosen.pop()
        return chosen

    def _note_end(self, donation: Donation) -> None:
        self._donation = None
        donation.stop_recording()
        self._note_failure(donation.offer, donation.error)

    def _note_failure(self, offer: Offer, error: ReductionError | None) -> None:
        # Whatever the error is, the others can continue without the newcomers.
        ranks, text = [worker.rank for worker in offer.newcomers], "ranks %s did not get the training: %s"
        LINES.log(log, logging.WARNING, "newcomers", "", text, ranks, error)
        for worker in offer.newcomers:
            self._failures[worker.nonce] = self._failures.get(worker.nonce, 0) + 1
        if not isinstance(error, LOSSES):
            self._again_at = time.monotonic() + AGAIN_S
        if isinstance(error, (ConfigError, LocalProtocolError)):  # no other newcomer would fare better
            self._refuse(offer.newcomers, error)


def _may_come(present: Generation, new: Sequence[Worker]) -> bool:
    """Return whether these newcomers may be admitted together.

    If a worker is lost at that moment, the existing workers can continue only if they are a majority of all
    (lineage.py). A single newcomer may always join. Otherwise a lone worker could never admit one with a lower rank.
    """
    together = Generation(present.number + 1, "", tuple(sorted((*present.workers, *new))))
    return len(new) <= 1 or present.is_majority_of(together, {})

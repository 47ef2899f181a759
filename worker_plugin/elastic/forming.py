"""How one worker gets into generations: it listens to the others, joins their proposals, and first takes the training.

Threads: `form` runs on the elastic thread, `accept` on the training thread, `connect_donation` on a donation's
thread. They share the state guarded by the condition, which is the communicator's.
"""

from __future__ import annotations

import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from reduction.errors import ClosedError, ReductionError, Unauthenticated, WorkerLost
from reduction.log_limit import LINES

from worker_plugin.client import Client
from worker_plugin.config import PluginConfig
from worker_plugin.elastic.clients import LOSSES, client_of, donation_client_of, submit_to
from worker_plugin.elastic.membership.council import (
    STOPPED_S,
    Advice,
    Hearing,
    Join,
    Propose,
    Refuse,
    Wait,
    deliberate,
    must_tell,
)
from worker_plugin.elastic.membership.entries import Offer, Said, generation_from_fields
from worker_plugin.elastic.membership.lineage import Generation, Lineage, Worker
from worker_plugin.elastic.membership.predecessor import HostRecord
from worker_plugin.elastic.membership.voice import Voice
from worker_plugin.elastic.newcomers.donation import Donation, follow
from worker_plugin.elastic.newcomers.training import Training

log = logging.getLogger(__name__)

#: How long to wait for news before checking again, in seconds.
PAUSE_S = 0.1


class Forming:
    """This worker's generations.

    Args:
        config: must have `job`, `rank` and `world_size`.
        settings: everything that must be the same on all workers, as a string.
        local_size: processes per worker.
        changed: notified when something has changed.
        check: raises the error that ended the job for this worker, if there is one.
    """

    def __init__(
        self,
        config: PluginConfig,
        settings: str,
        local_size: int,
        changed: threading.Condition,
        check: Callable[[], None],
    ) -> None:
        assert config.rank is not None  # `PluginConfig` has checked these
        assert config.world_size is not None
        assert config.job is not None
        self._config = config
        self._local_size = local_size
        self._changed, self._check = changed, check
        self.own = Worker(config.rank, secrets.token_hex(16))
        self._lineage = Lineage(self.own, config.world_size)
        self._record = HostRecord(config.job, self.own)
        #: The generation that all workers have agreed to change to.
        self._planned: Generation | None = None
        #: Whether this worker has begun to take a training, and the ids of the offers it accepted.
        self._has_taken = False
        self._accepted: set[str] = set()
        #: Nonces of the job's workers that were alive when any of them was last heard, and when that was.
        self._last_heard: set[str] = set()
        self._heard_at = 0.0
        #: Since when reducers have been heard without interruption.
        self._heard_since: float | None = None
        self._voice = Voice(config, Said(self.own, socket.gethostname(), settings), self._wake)

    @property
    def has_plan(self) -> bool:
        """Whether there is a generation to change to."""
        return self._planned is not None

    @property
    def newcomers(self) -> list[Worker]:
        """The new processes that want to be admitted and may be; the others refuse themselves (council.py)."""
        others, settings = self._voice.others().values(), self._voice.own.settings
        return [
            said.worker
            for said in others
            if not said.is_gone and said.number == 0 and said.settings == settings
        ]

    def replaced(self, generation: Generation) -> Worker | None:
        """Return a worker of this generation that another process was started to replace, if there is one.

        The reducers may not have noticed the end of that worker, since perhaps none was running.
        """
        replaced = {said.replaced for said in self._voice.others().values()}
        return next((worker for worker in generation.workers if worker in replaced), None)

    def may_join(self, generation: Generation) -> bool:
        """See `Lineage.may_join`."""
        return self._lineage.may_join(generation)

    def plan(self, generation: Generation, before: Generation | None = None) -> None:
        """Let `form` join this generation next, if it may. A newcomer passes `before`, the one that started before."""
        with self._changed:
            if before is not None and not self._lineage.number:
                self._lineage.inherit(before)
            # A worker may have been lost in the meantime, and the others may already have continued.
            if self._lineage.may_join(generation):
                self._planned = generation
            self._changed.notify_all()

    def say(self, **changes: Any) -> None:
        """Announce these changes to all others; see `Voice.say`."""
        last = self._lineage.last
        self._voice.say(number=self._lineage.number, generation="" if last is None else last.id, **changes)

    def end(self, *, in_order: bool) -> None:
        """Tell the others that this worker will join nothing more, so that they need not wait for it."""
        if in_order:
            self._record.erase()
        self.say(is_waiting=False, proposal=None, has_ended=True)
        self._voice.close()
        self._record.release()

    def wait_closed(self) -> None:
        """Wait briefly until the others have been told."""
        self._voice.wait_closed()

    # ---- generations ----

    def form(self) -> tuple[Client, Generation]:
        """Return the next generation, which has started, and its communicator.

        Raises:
            ReductionError: this worker can no longer take part.
        """
        since = time.monotonic()
        warn_at = since + self._config.stall_warn_s
        with self._changed:
            self.say(is_waiting=self._planned is None and self._lineage.number > 0, proposal=None)
        while True:
            with self._changed:
                self._check()
                planned, self._planned = self._planned, None
            if (former := self._record.former()) is not None:
                self.say(former=former)
            now = time.monotonic()
            unheard = self._voice.why_unheard()
            if isinstance(unheard, Unauthenticated) and self._lineage.number == 0:
                raise unheard
            if planned is not None and self._lineage.may_join(planned):
                advice: Advice = Join(planned)
            else:
                advice = deliberate(self._hearing(now, since))
            match advice:
                case Join(generation) | Propose(generation):
                    client = self._join(generation)
                    if client is not None:
                        return client, generation
                    since = time.monotonic()
                    self.say(is_waiting=self._lineage.number > 0, proposal=None)
                case Refuse(error):
                    raise unheard or error
                case Wait(why):
                    if now >= warn_at:
                        warn_at = now + 3 * self._config.stall_warn_s
                        job, rank = self._config.job, self.own.rank
                        also = f"; {unheard}" if unheard is not None else ""
                        log.warning("job %s rank %d: waiting for %s%s", job, rank, why, also)
                    with self._changed:
                        self._changed.wait(PAUSE_S)

    def _hearing(self, now: float, since: float) -> Hearing:
        others = self._voice.others()
        for said in others.values():
            self._lineage.ended.update(said.ended)
        if living := {nonce for nonce, said in others.items() if said.number and not said.is_gone}:
            self._last_heard, self._heard_at = living, now
        is_silent = not self._last_heard <= others.keys()
        if not self._voice.hears:
            self._heard_since = None
        elif self._heard_since is None:
            self._heard_since = now
        return Hearing(
            now,
            self._voice.own,
            others,
            self._lineage,
            since,
            self._config.join_timeout_s,
            secrets.token_hex(8),
            self._heard_since,
            self._has_taken,
            self._heard_at if is_silent else None,
        )

    def _join(self, generation: Generation) -> Client | None:
        """Join a generation. Return its communicator once it has started, or None if it never will."""
        self._record.keep(generation.number)
        self._lineage.join(generation)
        self.say(is_waiting=False)
        client = client_of(self._config, self.own, generation, self._local_size)
        if not self._has_started(client, generation):
            return None
        self._lineage.start(generation)
        self.say(proposal=None)
        return client

    def _has_started(self, client: Client, generation: Generation) -> bool:
        """Return whether all workers of a generation have joined its communicator. If not, abandon it.

        Raises:
            ReductionError: it failed for some reason other than the loss of one of its workers.
        """

        def does_not_come(said: Said) -> bool:
            has_another = said.number >= generation.number and said.generation != generation.id
            return said.is_gone or has_another or said.missed == generation.id

        def comes_last(said: Said) -> bool:
            return said.worker == generation.donor and said.number >= generation.number

        # A newcomer may have been suspended at this very moment. The others are known to be waiting.
        error = self._wait_for_start(
            client,
            generation.workers,
            does_not_come,
            comes_last if generation.newcomers else None,
            generation,
        )
        if error is not None and not isinstance(error, LOSSES):
            raise error
        return error is None

    def _wait_for_start(
        self,
        client: Client,
        workers: Sequence[Worker],
        does_not_come: Callable[[Said], bool],
        comes_last: Callable[[Said], bool] | None = None,
        generation: Generation | None = None,
    ) -> ReductionError | None:
        """Return None when all have joined a communicator. Otherwise abandon it and return the reason.

        Args:
            client: the communicator.
            workers: its workers whose absence matters.
            does_not_come: whether a worker will never join.
            comes_last: whether this is the worker that all others wait for, and it has arrived. From then on the limit
                is STOPPED_S.
            generation: the one this communicator belongs to, if any.
        """
        outcome: list[ReductionError | None] = []
        give_up_at = math.inf

        def connect() -> None:
            try:
                client.connect()
                outcome.append(None)
            except ReductionError as error:
                outcome.append(error)
            self._wake()

        threading.Thread(target=connect, name="reduction-elastic-start", daemon=True).start()
        members = frozenset(workers)
        heard_at = time.monotonic()
        while not outcome:
            with self._changed:
                others = self._voice.others().values()
                said = [one for one in (self._voice.own, *others) if one.worker in members]
                # Reducers forget workers that have gone (LOBBY_S), even while this worker hears none of the reducers.
                unheard = members.difference(one.worker for one in said)
                if not (others and unheard):
                    heard_at = time.monotonic()
                is_said = self._voice.own.proposal == generation
                if generation is not None and not is_said and must_tell(generation, self.own, others):
                    self.say(proposal=generation)
                if comes_last is not None and give_up_at == math.inf and any(map(comes_last, said)):
                    give_up_at = time.monotonic() + STOPPED_S
                try:
                    self._check()
                except ReductionError as over:
                    outcome.append(over)
                if missing := [one for one in said if does_not_come(one)]:
                    outcome.append(
                        WorkerLost(f"rank {missing[0].worker.rank} ({missing[0].host}) has disconnected")
                    )
                elif time.monotonic() >= heard_at + STOPPED_S:
                    ranks = sorted(worker.rank for worker in unheard)
                    outcome.append(WorkerLost(f"nothing was heard from ranks {ranks} for {STOPPED_S:g} s"))
                elif time.monotonic() >= give_up_at:
                    outcome.append(WorkerLost(f"not all workers joined within {STOPPED_S:g} s"))
                elif not outcome:
                    self._changed.wait(PAUSE_S)
        error = outcome[0]
        if error is not None:
            client.abandon(ClosedError("one of its workers will not join"))
            client.begin_close()
        return error

    # ---- donations ----

    def offer(self) -> Offer | None:
        """Return the offer made to this worker, if it is a newcomer that does not have the training yet."""
        if self._lineage.number or self._planned is not None:
            return None
        for said in self._voice.others().values():
            offer = said.offer
            if offer is not None and self.own in offer.newcomers and offer.id not in self._accepted:
                return offer
        return None

    def accept(self, offer: Offer, training: Training) -> dict[str, Any] | None:
        """Take a donation. Return the data that came with it, or None if it was incomplete.

        The elastic thread joins the generation once it is planned.
        """
        self._has_taken = True
        self._accepted.add(offer.id)
        client = donation_client_of(self._config, self.own, offer)

        def does_not_come(said: Said) -> bool:
            if said.worker == offer.workers[0]:
                return said.is_gone or said.offer is None or said.offer.id != offer.id
            return said.is_gone or said.number > 0 or said.missed == offer.id

        try:
            error = self._wait_for_start(client, offer.workers, does_not_come)
            if error is not None:
                raise error
            received = follow(training, submit_to(client))
            for name in ("before", "generation"):
                received[name] = generation_from_fields(received[name])
        except LOSSES as error:
            text = "job %s rank %d: the state did not arrive: %s"
            LINES.log(log, logging.WARNING, "state", "", text, self._config.job, self.own.rank, error)
            self.say(missed=offer.id)
            return None
        finally:
            client.begin_close()
        return received

    def connect_donation(self, donation: Donation) -> Client:
        """Return the communicator with the newcomers once all have joined it; runs on the donation's thread.

        Raises:
            ReductionError: one of them will not join.
        """
        client = donation_client_of(self._config, self.own, donation.offer)

        def does_not_come(said: Said) -> bool:
            has_missed = said.missed == donation.offer.id
            return donation.is_abandoned or said.is_gone or said.number > 0 or has_missed

        error = self._wait_for_start(client, donation.offer.newcomers, does_not_come)
        if error is not None:
            raise error
        return client

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

"""An elastic job's communicator: a sequence of generations, each with its own communicator (client.py).

    user's thread     submits collectives; waits in `take_part`, `checkpoint` and `change_to`
    elastic thread    finds the next generation when one has ended, agrees with its workers about results
                      (recovery.py), and resubmits the collectives without one
    I/O thread        wakes the elastic thread when the lobby has news
    staging threads   belong to the generations: keep results, and complete futures
    donation thread   runs while newcomers get the training from this worker (donation.py)

All of them share the state that `_changed` guards.

    a generation  ends with                     then
    forming       Start of all its workers      running
                  one of its workers has left   the elastic thread looks for the next one
    running       an error that says that a     the elastic thread looks for the next one, and the remaining
                  worker is lost, or has left   workers reduce collectives without a result again
                  `change_to`, by all workers   the one that they have agreed on
                  any other error               the job fails, as it does without elasticity
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from reduction.errors import (
    ClosedError,
    ConfigError,
    LocalProtocolError,
    PeerLeft,
    ReductionError,
    WorkerLost,
)
from reduction.log_limit import LINES

from worker_plugin.client import Client
from worker_plugin.communicator import CLOSED, Request
from worker_plugin.config import PluginConfig
from worker_plugin.discovery import meeting_point
from worker_plugin.elastic.clients import LOSSES, request_for
from worker_plugin.elastic.forming import PAUSE_S, Forming
from worker_plugin.elastic.ledger import Entry, Ledger, bytes_of
from worker_plugin.elastic.membership.entries import Offer
from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.newcomers.donation import Donation
from worker_plugin.elastic.newcomers.training import Training
from worker_plugin.elastic.recovery import agree_on_results
from worker_plugin.ending import Ending
from worker_plugin.process.at_exit import ClosedAtExit
from worker_plugin.tensors.futures import Future, fail, make_future
from worker_plugin.timeline.recorder import Recorder

log = logging.getLogger(__name__)

#: Maximum number of collectives between two checkpoints. Results are kept until the next one.
COLLECTIVES_MAX = 65536
#: A lobby entry is small.
REFUSAL_CHARACTERS_MAX = 600


class Elastic:
    """One worker of an elastic job. Implements `Communicator`.

    Args:
        config: settings, with `job`, `reducers`, `rank` and `world_size`.
        model: everything about the model that must be the same on all workers, as a string.
        local_size: number of processes whose sum each contribution of this worker is.

    Raises:
        ConfigError: a setting is missing, or cannot be used with `elastic`.
    """

    def __init__(self, config: PluginConfig, model: str = "", local_size: int = 1) -> None:
        meeting_point.check_without_store(config)
        meeting_point.warn_without_run(config)
        assert config.job is not None  # `check_without_store` has checked it
        self._config, self._job = config, config.job
        self._ending = Ending()
        self._changed = threading.Condition(self._ending.lock)
        settings = f"world_size={config.world_size}, wire_dtype={config.wire_dtype}"
        settings += f", {local_size} processes per worker" if local_size > 1 else ""
        settings += f", a model of {model}" if model else ""
        settings += f", run={config.run!r}"
        self._ledger = Ledger()
        self._client: Client | None = None
        #: The generation that is running, or ran last.
        self.generation: Generation | None = None
        self._is_running = False
        #: Data that came with the training, if this worker got it from another one and has not used it yet.
        self.received: Any = None
        #: Whether it is receiving the training.
        self._is_taking = False
        #: The current or last donation to newcomers.
        self._donation: Donation | None = None
        self.local_size = local_size
        #: Whether it ends once everything issued is done.
        self._is_leaving = False
        self._forming = Forming(config, settings, local_size, self._changed, self._check)
        self.own = self._forming.own
        _all.add(self)
        self._thread = threading.Thread(target=self._run, name="reduction-elastic", daemon=True)
        self._thread.start()

    # ---- the user's thread ----

    @property
    def error(self) -> ReductionError | None:
        """See `Communicator.error`."""
        return self._ending.error

    @property
    def job(self) -> str | None:
        """The job's name."""
        return self._job

    @property
    def recorder(self) -> Recorder | None:
        """Recent activity of the present generation."""
        return None if self._client is None else self._client.recorder

    def submit(self, request: Request) -> Future:
        """Issue the next collective; see `Communicator.submit`."""
        future = make_future(request.tensor)
        with self._changed:
            self._ending.check()
            if self._is_taking:
                raise ConfigError(
                    "this worker is receiving the training state from another one, and no collective can be issued "
                    "meanwhile: is there one in a hook of the model or the optimizer? Issue it outside the hook"
                )
            if len(self._ledger.entries) >= COLLECTIVES_MAX:
                raise ConfigError(
                    f"{COLLECTIVES_MAX} collectives without state.sync(): an elastic job keeps results from one call "
                    f"to the next, so call it once per step"
                )
            entry = self._ledger.issue(request, future)
            if self._is_running:
                self._hand_over(entry)
        return future

    def connect(self) -> None:
        """Wait until a generation with this worker is running. Not before `take_part` has begun."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_running or self._ending.final is not None)
            self._ending.check()

    def take_part(self, training: Training) -> None:
        """Wait until this worker is in a running generation. A newcomer first gets the training, in place."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._is_running
                        or self._ending.final is not None
                        or self._forming.offer() is not None
                    )
                )
                self._ending.check()
                if self._is_running:
                    return
                offer = self._forming.offer()
                self._is_taking = offer is not None
            try:
                received = None if offer is None else self._forming.accept(offer, training)
            except ReductionError as error:
                self.abandon(error)  # the state taken so far is useless, and the donor should not wait
                raise
            finally:
                self._is_taking = False
            if received is not None:
                with self._changed:
                    self.received = received
                    self._ledger.begin(received["seq"])
                self._forming.plan(received["generation"], received["before"])

    def begin_add(self, tensor: torch.Tensor) -> Future:
        """Begin to sum a CPU tensor of whole numbers in place over all workers. All of them must call this."""
        return self.submit(request_for(tensor))

    def add(self, tensor: torch.Tensor) -> None:
        """Sum a CPU tensor of whole numbers in place over all workers; blocks. All of them must call this.

        Raises:
            ReductionError: the job has failed.
        """
        self.begin_add(tensor).wait()

    def checkpoint(self, tensor: torch.Tensor) -> None:
        """Do what `add` does, between two steps. After it, all workers hold everything issued before."""
        with self._changed:
            # By contributing to a checkpoint a worker confirms that it holds all earlier results.
            self._changed.wait_for(lambda: not self._ledger.open_entries or self._ending.final is not None)
            seq = self._ledger.issued
        self.add(tensor)
        with self._changed:
            self._ledger.forget_before(seq)

    def donate(self, offer: Offer, training: Training) -> Donation:
        """Begin to give newcomers the training while all workers continue with it."""
        donation = Donation(offer, training, self._forming.connect_donation)
        with self._changed:
            self._donation = donation
            final = self._ending.final
        if final is not None:
            donation.abandon(final)
        self._forming.say(offer=offer)
        return donation

    def refuse(self, newcomers: Sequence[Worker], error: ReductionError) -> None:
        """End newcomers with ConfigError: this worker cannot give them the training, because of `error`."""
        nonces = tuple(worker.nonce for worker in newcomers)
        self._forming.say(refused=nonces, refusal=str(error)[:REFUSAL_CHARACTERS_MAX])

    def change_to(self, generation: Generation, give_rest: Callable[[int], None]) -> None:
        """Change to a generation that all workers agreed on in a checkpoint; wait until that one, or another, runs.

        Args:
            generation: has newcomers.
            give_rest: called by their donor with the number of the next collective, to finish the donation.
        """
        with self._changed:
            if not self._forming.may_join(generation):
                return  # a worker was lost in the meantime, and the job has continued
            number = self._ledger.issued
            self._is_running = False
        if generation.donor == self.own:
            give_rest(number)
            if self._donation is not None and self._donation.error is not None:
                self._forming.say(missed=generation.id)
        self._forming.plan(generation)
        with self._changed:
            self._changed.wait_for(lambda: self._is_running or self._ending.final is not None)
            self._ending.check()

    @property
    def newcomers(self) -> list[Worker]:
        """The new processes that want to be admitted."""
        return self._forming.newcomers

    def abandon(self, error: ReductionError) -> None:
        """Fail here; the others continue without this worker."""
        with self._changed:
            client = self._client
        self._end(error)
        if client is not None:
            client.abandon(error)

    def begin_close(self) -> None:
        """Leave in the background; see `Communicator.begin_close`."""
        with self._changed:
            client = self._client
        if client is not None:
            client.begin_close()
        self._end(ClosedError(CLOSED))

    def close(self) -> None:
        """Leave, and return when that is done; see `Communicator.close`."""
        self.begin_close()
        with self._changed:
            client = self._client
        if client is not None:
            client.close()
        self._forming.wait_closed()

    def leave(self) -> None:
        """Leave once everything issued is done; see `Communicator.leave`."""
        self._is_leaving = True  # without a lock: the garbage collector may call this while one is held
        client = self._client
        if client is not None:
            client.leave()

    # ---- collectives of the present generation; with the lock held ----

    def _hand_over(self, entry: Entry) -> None:
        assert self._client is not None  # it runs
        try:
            inner = self._client.submit(entry.request)
        except ReductionError:  # the elastic thread sees that the client has failed
            self._wake()
            return
        entry.is_under_way = True
        inner.add_done_callback(partial(self._on_result, entry))

    def _on_result(self, entry: Entry, inner: Future) -> None:
        """Keep a result, and complete the user's future; runs on a staging thread."""
        try:
            tensor = inner.value()
        except Exception:  # the elastic thread sees that the client has failed
            with self._changed:
                entry.is_under_way, final = False, self._ending.final
                self._changed.notify_all()
            if final is not None:  # `_end` has left this future to us
                fail(entry.future, final)
            return
        result = bytes_of(tensor).clone()
        with self._changed:
            entry.is_under_way, entry.result = False, result
            self._changed.notify_all()
        entry.future.set_result(entry.request.tensor)

    # ---- the elastic thread ----

    def _check(self) -> None:
        """Raise the error that ended this worker; end it now if it is leaving and everything is done."""
        if self._is_leaving and not self._ledger.open_entries:
            self._end(ClosedError(CLOSED))
        self._ending.check()

    def _run(self) -> None:
        try:
            while True:
                client, generation = self._forming.form()
                with self._changed:
                    self._client, self.generation = client, generation
                if self._recover(client, generation):
                    self._watch(client, generation)
        except ReductionError as error:
            self._end(error)
        except Exception as error:
            log.exception("job %s rank %d: the elastic thread failed", self._job, self.own.rank)
            self._end(LocalProtocolError(f"the elastic thread failed: {error!r}"))
        finally:
            self._forming.end(in_order=isinstance(self._ending.final, ClosedError))

    def _recover(self, client: Client, generation: Generation) -> bool:
        """Agree on results with the generation's workers, and continue. Return whether the generation still runs."""
        index, add = generation.workers.index(self.own), partial(self._add, client, generation)
        try:
            with self._changed:
                # Nothing from an earlier generation may still be writing to a tensor.
                self._changed.wait_for(lambda: not any(one.is_under_way for one in self._ledger.open_entries))
                entries = dict(self._ledger.entries)
                bounds = self._ledger.missing, self._ledger.end
            found = agree_on_results(entries, bounds, index, len(generation.workers), add)
        except LOSSES:
            return False
        with self._changed:
            self._ending.check()  # if so, users already have the error, and may be using their tensors again
            for seq, result in found.items():
                entry = entries[seq]
                tensor = entry.request.tensor
                with torch.inference_mode(tensor.is_inference()):
                    bytes_of(tensor).copy_(result)
                entry.result = result
            for entry in self._ledger.open_entries:
                self._client = client
                self._hand_over(entry)
            self._is_running = True
            self._changed.notify_all()
        for seq in found:
            entries[seq].future.set_result(entries[seq].request.tensor)
        return True

    def _watch(self, client: Client, generation: Generation) -> None:
        """Return when the generation has ended and its workers look for another one."""
        with self._changed:
            while client.error is None and not self._forming.has_plan:
                self._check()
                self._look_for_replaced(client, generation)
                self._changed.wait(PAUSE_S)
            self._is_running = False
            error = None if self._forming.has_plan else client.error
        if error is None:  # the workers change to another generation; all hold all results of this one
            client.begin_close()
            return
        if not isinstance(error, LOSSES):
            raise error
        text = "job %s rank %d: %s; continuing without it"
        level, why = logging.WARNING, str(error)
        if isinstance(error, PeerLeft):  # not a problem: it has closed
            level, why = logging.INFO, "a worker has left"
        LINES.log(log, level, "generation", "", text, self._job, self.own.rank, why)
        client.begin_close()

    def _add(self, client: Client, generation: Generation, tensor: torch.Tensor) -> None:
        """Sum a tensor in place over a generation's workers; blocks."""
        future = client.submit(request_for(tensor))
        future.add_done_callback(lambda _: self._wake())
        with self._changed:
            while not future.done():
                self._look_for_replaced(client, generation)
                self._changed.wait(PAUSE_S)
        future.wait()

    def _look_for_replaced(self, client: Client, generation: Generation) -> None:
        """Abandon a generation when a process reports that it replaces one of its workers, which ended unseen.

        Reducers report lost workers, but none may have been running at that moment.
        """
        if client.error is None and (lost := self._forming.replaced(generation)) is not None:
            client.abandon(WorkerLost(f"rank {lost.rank} has ended and was restarted"))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ---- the end ----

    def _end(self, error: ReductionError) -> None:
        """End with an error, which all collectives without a result and all later ones get."""
        with self._changed:
            if not self._ending.end(error):
                return
            self._is_running = False
            # The generation may still write to the tensors of collectives under way. Those fail once it is done.
            left = [entry for entry in self._ledger.open_entries if not entry.is_under_way]
            donation, client = self._donation, self._client
            self._changed.notify_all()
        if donation is not None:
            donation.abandon(error)
        if client is not None and not isinstance(error, ClosedError):
            client.abandon(error)  # or the others would wait for this worker
        for entry in left:
            fail(entry.future, error)


#: Elastic jobs of this process that have not ended. Created after the clients' collection, so it is closed first.
_all: ClosedAtExit[Elastic] = ClosedAtExit()

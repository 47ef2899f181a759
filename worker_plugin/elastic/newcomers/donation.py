"""A training on its way to newcomers while the others continue it.

    donor: the first worker                    newcomer, in its first `sync`

    a copy of model and optimizer          ->  takes it
    before each step of its optimizer:
      its settings and gradients           ->  does the same step
    when little is left to send, and all
      change to a generation with the
      newcomers: the rest                  ->  takes it, and computes a digest
    its own digest                         ->  compares
                                           <-  whether anything differs
    if so: the whole state again           ->  takes it

So the others wait for about one step's gradients. They wait longer if the newcomers are too slow to ever catch
up, and for the whole state if the weights do not follow from the optimizer's steps alone, as in a training
that also clips weights.

For the reducers, newcomers and donor are a job of their own, so the loss of a newcomer does not affect the
others.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from reduction.errors import ConfigError, LocalProtocolError, ReductionError, WorkerLost

from worker_plugin.client import Client
from worker_plugin.elastic import trees
from worker_plugin.elastic.clients import submit_to
from worker_plugin.elastic.membership.entries import Offer
from worker_plugin.elastic.newcomers.training import Training
from worker_plugin.elastic.trees import Submit

log = logging.getLogger(__name__)

#: Newcomers that lack one step, or NEAR_BYTES of several, count as caught up if nothing that they lack is older than
#: LIVE_S seconds.
NEAR_BYTES = 1 << 20
LIVE_S = 1.0
#: Newcomers that lag by more bytes of steps than the state has, and by more than this, are admitted although the others
#: must wait for them.
BACKLOG_BYTES_MIN = 64 << 20
#: How long newcomers may take nothing before they are given up, in seconds; FINISH_STALL_S applies while the others
#: wait. The latter excludes the time in which they compare their state, estimated at COMPARED_PER_S bytes per second.
STALL_S = 10.0
FINISH_STALL_S = 3.0
COMPARED_PER_S = 1e8
#: When newcomers take the next tree, they have used the previous one. If there is no next one, they get an empty tree
#: after PAUSE_S seconds.
PAUSE_S = 0.02


@dataclass(slots=True)
class _Part:
    """A tree that newcomers may not have used yet."""

    packed: Any
    tensors: list[torch.Tensor]
    size: int
    since: float


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Turn any failure of the donor's model or optimizer into an error that can be sent to newcomers."""
    try:
        yield
    except ReductionError:
        raise
    except Exception as error:
        log.exception("the training cannot be given to newcomers")
        raise ConfigError(f"its training cannot be read: {error!r:.500}") from error


class Donation:
    """The donor's side of a donation. Once created it raises none of its errors; see `error`.

    Args:
        offer: names the newcomers.
        training: in its current state, in a checkpoint.
        connect: returns the communicator with the newcomers; called on this donation's thread.

    Raises:
        ConfigError: the training cannot be sent.

    Threads: everything but `_run` is for the training thread; `abandon` is for any. Every donation must end with
    `stop_recording`.
    """

    def __init__(self, offer: Offer, training: Training, connect: Callable[[Donation], Client]) -> None:
        self.offer = offer
        self._training = training
        self._changed = threading.Condition()
        #: Trees that newcomers may not have used yet, the oldest first. The first `_sent` of them have been sent, the
        #: first `_begun` have been or are being sent.
        self._parts: deque[_Part] = deque()
        self._sent = self._begun = 0
        self._unsent_bytes = 0
        self._have_used_state = False
        self._is_last_there = False
        self._client: Client | None = None
        self._progress_at = time.monotonic()
        self.is_abandoned = False
        self.has_ended = False
        #: The error that made it fail.
        self.error: ReductionError | None = None
        with _reading():
            training.check()
            self._append(training.state())
        self._limit = max(self._unsent_bytes, BACKLOG_BYTES_MIN)
        self._finish_stall_s = FINISH_STALL_S + self._unsent_bytes / COMPARED_PER_S
        #: Whether all steps since the state was copied have been recorded.
        self._has_steps = True
        self._hook = training.before_steps(self._before_step)
        threading.Thread(
            target=self._run, args=(connect,), name="reduction-elastic-donation", daemon=True
        ).start()

    @property
    def is_ready(self) -> bool:
        """Whether the others should now change to a generation with the newcomers."""
        with self._changed:
            is_near = len(self._parts) - self._sent <= 1 or self._unsent_bytes <= NEAR_BYTES
            is_live = not self._parts or time.monotonic() < self._parts[0].since + LIVE_S
            is_late = self._unsent_bytes > self._limit
            return self._have_used_state and ((is_near and is_live) or is_late) and not self.has_ended

    @property
    def is_stalled(self) -> bool:
        """Whether the newcomers have taken nothing for too long."""
        return bool(self._parts) and self._stalls_for() > STALL_S

    def is_of(self, training: Training) -> bool:
        """Return whether this training is the donated one."""
        return training.is_same_as(self._training)

    def stop_recording(self) -> None:
        """Stop listening to the optimizer."""
        if self._hook is not None:
            self._hook.remove()

    def finish(self, last: Mapping[str, Any]) -> None:
        """Send this and the rest of the training; wait until the newcomers have it or the donation has failed."""
        self.stop_recording()
        try:
            with _reading():
                self._append(dict(last) | {"rest": self._training.rest()})
                # The newcomers compute their digest in the meantime.
                self._append({"digest": self._training.digest()}, is_last=True)
        except ReductionError as error:
            self.abandon(error)
        with self._changed:
            while not self.has_ended and self._stalls_for() < self._finish_stall_s:
                self._changed.wait(PAUSE_S)
        if not self.has_ended:
            self.abandon(WorkerLost(f"newcomers took nothing for {self._finish_stall_s:.1f} s"))
            with self._changed:
                self._changed.wait_for(lambda: self.has_ended)

    def _stalls_for(self) -> float:
        return time.monotonic() - self._progress_at

    def abandon(self, error: ReductionError) -> None:
        """Fail with this error."""
        with self._changed:
            self.is_abandoned = True
            self.error = self.error or error
            client = self._client
            self._changed.notify_all()
        if client is not None:
            client.abandon(error)

    def _before_step(self, _: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self.has_ended or not self._has_steps:
            return
        has_closure = len(args) > 1 or any(value is not None for value in options.values())
        try:
            with _reading():
                step = None if has_closure else self._training.step()
                if step is not None:
                    self._append(step)
        except ReductionError as error:  # the donor's own step must not fail because of this
            self.abandon(error)
            return
        with self._changed:
            waiting = list(self._parts)[max(self._begun, 1) :]
            # The steps must not need more memory than the state, nor reach the newcomers later than a new copy of it
            # would.
            is_too_much = not self._have_used_state and sum(part.size for part in waiting) > self._limit
            if step is None or is_too_much:
                self._has_steps = False  # so the digest will differ, and the whole state is sent
                for part in waiting:
                    self._unsent_bytes -= part.size
                    self._parts.pop()

    def _append(self, tree: Any, *, is_last: bool = False) -> None:
        packed, tensors = trees.pack(tree)
        if not is_last:  # the training continues, and changes them
            tensors = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        part = _Part(packed, tensors, sum(tensor.nbytes for tensor in tensors), time.monotonic())
        with self._changed:
            if len(self._parts) == self._sent:
                self._progress_at = part.since
            self._parts.append(part)
            self._unsent_bytes += part.size
            self._is_last_there = is_last
            self._changed.notify_all()

    # ---- its own thread ----

    def _run(self, connect: Callable[[Donation], Client]) -> None:
        try:
            client = connect(self)
            with self._changed:
                self._client = client
            self._send_all(partial(self._submit, submit_to(client)))
        except ReductionError as error:
            self.error = self.error or error
        except Exception as error:
            log.exception("the state could not be sent")
            self.error = LocalProtocolError(f"the state could not be sent: {error!r}")
        finally:
            if self._client is not None:
                self._client.begin_close()
            with self._changed:
                self.has_ended = True
                self._parts.clear()
                self._changed.notify_all()

    def _submit(self, submit: Submit, tensor: torch.Tensor) -> Any:
        future = submit(tensor)
        future.add_done_callback(self._on_progress)
        return future

    def _on_progress(self, _: object) -> None:
        self._progress_at = time.monotonic()

    def _send_all(self, submit: Submit) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                while len(self._parts) == self._sent and not self.is_abandoned:
                    if not self._changed.wait(PAUSE_S if self._sent else None):
                        break
                if self.is_abandoned:
                    return
                new = list(self._parts)[self._sent :]
                self._begun = len(self._parts)
                is_last = self._is_last_there
            # Sent together, so that many small steps take little longer than one.
            trees.send_packed(*trees.join([(part.packed, part.tensors) for part in new]), submit)
            with self._changed:
                for _ in range(self._sent):
                    self._parts.popleft()
                    self._have_used_state = True
                self._sent = self._begun = len(new)
                for part in new:
                    self._unsent_bytes -= part.size
                    part.tensors = []
        differs = torch.zeros(1, dtype=torch.int64)
        submit(differs).wait()
        if int(differs):
            why = "the weights do not follow from the optimizer's steps alone"
            if not self._has_steps:
                why = "its steps have closures or sparse gradients, or are faster than the newcomers' links"
            log.warning("newcomers get the whole state again, and the others wait for it: %s", why)
            trees.send(self._training.state(), submit)


def follow(training: Training, submit: Submit) -> dict[str, Any]:
    """Take a donation, and return what its donor passed to `finish`.

    Raises:
        ReductionError: the donation failed; the training is in no usable state.
        ConfigError: the model or optimizer alters what it loads.
    """
    last: dict[str, Any] = {}
    digest = ""
    while True:
        for tree in trees.receive(submit):
            if "gradients" in tree:
                training.repeat(tree)
            elif "rest" in tree:
                last = dict(tree)
                training.take_rest(last["rest"])
                digest = training.digest()
            elif "digest" in tree:
                differs = torch.zeros(1, dtype=torch.int64)
                differs[0] = digest != tree["digest"]
                submit(differs).wait()
                if int(differs):
                    training.take(trees.receive(submit))
                    training.take_rest(last["rest"])
                    if training.digest() != tree["digest"]:
                        raise ConfigError(
                            "this worker's model or optimizer differs from what it has loaded from another worker: "
                            "load_state_dict must keep all bits, and the dtypes of the optimizer's state"
                        )
                return last
            else:
                training.take(tree)

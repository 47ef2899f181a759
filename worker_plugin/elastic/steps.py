"""What an elastic job does between two steps: it admits new workers and brings all workers to one state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from reduction.errors import WorkerLost, WorkersMissing

from worker_plugin.elastic import trees
from worker_plugin.elastic.ledger import bytes_of
from worker_plugin.elastic.membership.entries import generation_from_fields, generation_to_fields
from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.newcomers.admission import Admission
from worker_plugin.elastic.newcomers.training import Training
from worker_plugin.elastic.worker import Elastic

#: How often workers check again while there are fewer than `min_workers`, in seconds.
PAUSE_S = 0.2
#: Size of the header that the first worker sends at a checkpoint, before the buffers. It says that the worker has sent
#: something, what follows, and its length in bytes.
_HEADER_BYTES = 16
_NOTHING, _CHANGE, _GIVE_UP, _RANKS, _LAYOUT = 0, 1, 2, 3, 4
#: Called with the ranks before and after a change.
OnChange = Callable[[tuple[int, ...], tuple[int, ...]], None]


class Steps:
    """The checkpoints of one worker. For the training thread.

    Args:
        communicator: the job's.
        min_workers: no step begins with fewer workers.
        join_timeout_s: how long to wait for that many.
        on_change: called with the ranks before and after when the set of workers changes.
    """

    def __init__(
        self,
        communicator: Elastic,
        min_workers: int,
        join_timeout_s: float,
        on_change: Sequence[OnChange] = (),
    ) -> None:
        self._communicator = communicator
        self._min_workers = min_workers
        self._join_timeout_s = join_timeout_s
        self._has_state = False
        #: Model and optimizer, as of the last call in which they were not the same as before.
        self._training: Training | None = None
        self._on_change = on_change
        self._admission = Admission(communicator.donate, communicator.refuse)
        #: How buffers follow each other in checkpoint messages, as returned by `trees.pack`. The first worker announces
        #: a new layout before it uses it, so that all messages have one size.
        self._layout, _ = trees.pack({})
        #: Whether the last call has set model and optimizer.
        self.has_taken_state = False
        #: The ranks that take part in the present step. The first worker announces them, so they are the same on all
        #: workers even if one is lost while the step begins.
        self.ranks: tuple[int, ...] = ()

    def agree(self, own: bool) -> bool:
        """Return `own`: a worker of one process has no other ranks to agree with."""
        return own

    def sync(self, training: Training) -> dict[str, Any]:
        """Return when a step may begin, with all workers in one state.

        Raises:
            ConfigError: the optimizer changes something outside the model; something cannot be sent to others; the
                model's buffers or the optimizer differ from those of the first worker.
            ReductionError: this worker cannot take part, or the job has failed.
        """
        training.check_extra()
        if not training.is_same_as(self._training):
            training.check()
            self._training = training
        self._communicator.take_part(training)
        self.has_taken_state = False
        received, self._communicator.received = self._communicator.received, None
        if received is not None:
            training = replace(training, extra=received["extra"])
            self.has_taken_state = True
            self.ranks, self._layout = tuple(received["ranks"]), json.loads(received["layout"])
        elif not self._has_state:
            training = replace(training, extra=self._begin_alike(training))
            self.has_taken_state = True
        self._has_state = True
        self._checkpoint(training)
        return dict(training.extra)

    @property
    def _workers(self) -> tuple[Worker, ...]:
        generation = self._communicator.generation
        assert generation is not None  # it has connected
        return generation.workers

    @property
    def _is_first(self) -> bool:
        """Whether this worker speaks for all."""
        return self._workers[0] == self._communicator.own

    def _begin_alike(self, training: Training) -> dict[str, Any]:
        """Have all workers of a new job begin with the state of the first one; return its `extra`."""
        while True:
            try:
                if self._is_first:
                    tree = training.state() | {"extra": dict(training.extra)}
                    trees.send(tree, self._communicator.begin_add)
                    return dict(training.extra)
                tree = trees.receive(self._communicator.begin_add)
                training.take(tree)
                return dict(tree["extra"])
            except WorkerLost:
                # All workers see at the same collective that the first one is lost.
                if self._communicator.error is not None:
                    raise

    def _checkpoint(self, training: Training) -> None:
        give_up_at = time.monotonic() + self._join_timeout_s
        while True:
            what, content = self._tell(training, give_up_at)
            if what == _CHANGE:
                generation = generation_from_fields(json.loads(content))
                self._communicator.change_to(generation, partial(self._give_rest, training, generation))
                continue
            if what == _RANKS:
                self._change_ranks(tuple(json.loads(content)))
            if len(self.ranks) >= self._min_workers:
                return
            if what == _GIVE_UP:
                raise WorkersMissing(
                    f"{len(self.ranks)} workers are left, min_workers is {self._min_workers}, and no other joined "
                    f"within {self._join_timeout_s:g} s (join_timeout_s)"
                )
            time.sleep(PAUSE_S)

    def _give_rest(self, training: Training, generation: Generation, seq: int) -> None:
        """Send newcomers everything but the training itself; `seq` is the number of the next collective."""
        before = self._communicator.generation
        assert before is not None  # it has connected
        self._admission.finish(
            {
                "generation": generation_to_fields(generation),
                "before": generation_to_fields(before),
                "seq": seq,
                "ranks": list(self.ranks),
                "layout": json.dumps(self._layout),
                "extra": dict(training.extra),
            }
        )

    def _change_ranks(self, ranks: tuple[int, ...]) -> None:
        before, self.ranks = self.ranks, ranks
        if before:
            for call in self._on_change:
                call(before, ranks)

    def _tell(self, training: Training, give_up_at: float) -> tuple[int, bytes]:
        """Return what the first worker sends to all; it also sends them its model's buffers."""
        while True:
            buffers, parts = trees.unpack(self._layout)
            message = torch.zeros(_HEADER_BYTES + sum(part.nbytes for part in parts), dtype=torch.uint8)
            content = b""
            if self._is_first:
                layout, own = trees.pack(training.buffers())
                if layout == self._layout:
                    what, content = self._decide(training, give_up_at)
                    message = torch.cat([message[:_HEADER_BYTES], *map(trees.flat_bytes, own)])
                else:
                    what, content = _LAYOUT, json.dumps(layout).encode()
                header = bytes((1, what)) + len(content).to_bytes(8, "little")
                message[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
            self._communicator.checkpoint(message)
            if not int(message[0]):
                continue  # the first worker is lost, and all of them see it
            what, size = int(message[1]), int.from_bytes(message[2:10].numpy().tobytes(), "little")
            if size:
                text = torch.zeros(1 + size, dtype=torch.uint8)
                if content:
                    text = torch.frombuffer(bytearray(b"\1" + content), dtype=torch.uint8)
                self._communicator.checkpoint(text)
                if not int(text[0]):
                    continue
                content = text[1:].numpy().tobytes()
            if what == _LAYOUT:
                self._layout = json.loads(content)
                continue
            start = _HEADER_BYTES
            for part in parts:
                bytes_of(part).copy_(message[start : start + part.nbytes])
                start += part.nbytes
            training.take_buffers(buffers)
            return what, content

    def _decide(self, training: Training, give_up_at: float) -> tuple[int, bytes]:
        """Return what the first worker sends to all."""
        present = self._communicator.generation
        assert present is not None  # it has connected
        generation = self._admission.tend(present, self._communicator.newcomers, training)
        if generation is not None:
            return _CHANGE, json.dumps(generation_to_fields(generation)).encode()
        ranks = [worker.rank for worker in present.workers]
        if tuple(ranks) != self.ranks:
            return _RANKS, json.dumps(ranks).encode()
        if len(ranks) < self._min_workers and time.monotonic() >= give_up_at:
            return _GIVE_UP, b""
        return _NOTHING, b""

"""Hierarchical mode: a node's ranks reduce among themselves, and only the sums go over the network.

    user's thread    numbers the collective and returns
    scatter thread   once: finds out which ranks form a node. Then, in the order of the collectives: exchanges shards
                     within the node, and submits this rank's part to its uplink
    gather thread    in the order of the collectives, whichever completes first: waits for that result, exchanges
                     the results within the node, writes the tensor and completes the future
    watch thread     observes the neighbours (watch.py)

The uplink is another communicator, which handles everything that concerns reducers, including recovery. Each rank
has its rail (rail.py), or in an elastic job the first rank acts for all (elastic/node/node_rank.py). If the uplink, a
rank or an exchange fails, the whole communicator fails with one error. Its own node learns of the error by a note, and
the other nodes learn of it because every rank abandons its own uplink with that error.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator

from reduction.errors import (
    ClosedError,
    LocalProtocolError,
    ReductionError,
    WorkerLost,
    code_to_others,
)

from worker_plugin.client import CLOSE_EXTRA_S
from worker_plugin.communicator import CLOSED, Communicator, Request
from worker_plugin.config import PluginConfig
from worker_plugin.discovery.bounded_store import BoundedStore
from worker_plugin.discovery.nodes import Node
from worker_plugin.ending import Ending
from worker_plugin.hierarchy.exchange import Exchange, Share, Submission, on_stream
from worker_plugin.hierarchy.local_group import LocalGroup
from worker_plugin.hierarchy.neighbours import Kind, Neighbours
from worker_plugin.hierarchy.watch import Watch
from worker_plugin.process import fork
from worker_plugin.process.at_exit import ClosedAtExit
from worker_plugin.process.io_loop import io_loop
from worker_plugin.tensors.futures import Future, fail, failed, make_future, raise_again
from worker_plugin.tensors.gpu import streams
from worker_plugin.timeline.recorder import Recorder

log = logging.getLogger(__name__)

#: How long this rank waits after a broken exchange to learn the cause from a note or a pidfd, in seconds.
CAUSE_S = 1.0
#: How much longer than `timeout_s` Gloo waits in an exchange, in seconds. The more informative CollectiveTimeout comes
#: first.
SLACK_S = 30.0


class _Last:
    """Follows the last collective in a queue: no more can be issued."""


class Hierarchy:
    """A rank's communicator if `local_group` is set. It owns another one for the network, which ends with it."""

    def __init__(self, config: PluginConfig) -> None:
        self._config = config
        #: It has begun once `_client` exists, on the ranks that get one.
        self._ending = Ending()
        self._lock = self._ending.lock
        #: Held while a tensor is written. `fail` takes it before futures get the error, so that no tensor is written
        #: after that.
        self._writing = threading.Lock()
        #: Set when a failure has reached all futures.
        self._failed = threading.Event()
        #: See `Communicator.local_size`.
        self.local_size = 1
        #: Number of collectives that have been issued.
        self.issued = 0
        self._submissions: dict[int, Submission] = {}
        #: The uplink or, if there are no nodes, the communicator of the whole job, in which case there is no exchange.
        #: None until that is known, and on ranks without their own uplink.
        self._client: Communicator | None = None
        self._exchange: Exchange | None = None
        self._watch: Watch | None = None
        #: One group each for the scatter thread and the gather thread; empty if there are no nodes.
        self._groups: list[LocalGroup] = []
        #: Whether the user's thread submits collectives directly to the client: there are no nodes, and no collective
        #: is left waiting for the scatter thread.
        self._is_flat = False
        self._to_scatter: queue.SimpleQueue[Submission | _Last | None] = queue.SimpleQueue()
        self._to_gather: queue.SimpleQueue[tuple[Share, Future | None] | _Last | None] = queue.SimpleQueue()
        self._neighbours = Neighbours()
        self._loop = io_loop()
        self._threads: list[threading.Thread] = []
        fork.register(self)
        _hierarchies.add(self)
        self._begin_thread("scatter", self._scatter)

    # ---- the user's thread ----

    @property
    def error(self) -> ReductionError | None:
        """The error that ended this communicator."""
        return self._ending.error or (None if self._client is None else self._client.error)

    @property
    def job(self) -> str | None:
        """See `Client.job`."""
        return None if (client := self._client) is None else client.job

    @property
    def recorder(self) -> Recorder | None:
        """See `Communicator.recorder`. It belongs to the uplink, and knows nothing of exchanges within the node."""
        return None if (client := self._client) is None else client.recorder

    def submit(self, request: Request) -> Future:
        """Issue the next collective; see `Communicator.submit`."""
        future = make_future(request.tensor)
        ready = streams.written(request.tensor)
        with self._lock:
            raise_again(self._ending.final or self.error)
            submission = Submission(self.issued, request, future, ready)
            self.issued += 1
            if self._is_flat:
                assert self._client is not None
                return self._client.submit(request)
            self._submissions[submission.seq] = submission
            self._to_scatter.put(submission)
        return future

    def connect(self) -> None:
        """See `Communicator.connect`."""
        self._ending.wait()
        if self._client is not None:
            self._client.connect()
        self._ending.check()

    def abandon(self, error: ReductionError) -> None:
        """Fail here and on all other ranks. For any thread; does nothing if the communicator has already ended."""
        self.fail(error, Kind.FAILED)

    def begin_close(self) -> None:
        """Let the communicator leave cleanly in the background. For any thread; idempotent."""
        if (error := self.error) is not None:  # the uplink's error, which the watch may not have noticed yet
            self.fail(error, Kind.FAILED)
        with self._lock:
            left, under_way = min(self._submissions, default=self.issued), len(self._submissions)
            is_first = not under_way and self._ending.end(ClosedError(CLOSED))
        if under_way:
            self.fail(ClosedError(f"closed with {under_way} collectives in flight"), Kind.LEFT, left)
        elif is_first:
            self._neighbours.tell(Kind.LEFT, number=left)
        if (client := self._client) is not None:
            client.begin_close()
        self._to_scatter.put(None)

    def close(self) -> None:
        """Leave cleanly; see `Client.close`. From a callback of a future it returns immediately."""
        self.begin_close()
        if threading.current_thread() in self._threads:
            return
        if (client := self._client) is not None:
            client.close()
        deadline = time.monotonic() + CLOSE_EXTRA_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def leave(self) -> None:
        """Let the communicator leave once everything issued is done; see `Client.leave`, also for the reason."""
        self._loop.call_soon_threadsafe(self._on_last)

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `fork.DescriptorOwner`.

        Gloo's connections may stay open, because a rank's end is detected by its pidfd and not by them.
        """
        return set(), self._neighbours.descriptors

    # ---- the I/O loop's thread ----

    def _on_last(self) -> None:
        with self._lock:
            if not self._is_flat:
                self._to_scatter.put(_Last())
                return
        assert self._client is not None
        self._client.leave()

    # ---- the scatter thread ----

    def _scatter(self) -> None:
        groups = self._groups
        try:
            with self._failing("the ranks of this node could not meet"):
                self._start()
            while (submission := self._next()) is not None:
                if isinstance(submission, _Last):
                    self._pass_on(submission)
                    continue
                with self._failing(f"collective {submission.seq} failed in the node"):
                    if self._exchange is None:
                        self._forward(submission)
                    else:
                        self._issue(groups[0], submission)
                del submission  # otherwise this variable would keep its memory until the next one arrives
        finally:
            self._forget()
            self._to_gather.put(None)
            is_shared = self._watch is not None  # the gather thread then ends the rest
            for group in groups[: 1 if is_shared else None]:
                group.close()
            if not is_shared:
                self._neighbours.close()

    def _pass_on(self, last: _Last) -> None:
        """Let the communicator leave, on the last thread that handles the collectives."""
        if self._exchange is not None:
            self._to_gather.put(last)
        elif self._client is not None:
            self._client.leave()

    def _next(self) -> Submission | _Last | None:
        """Wait for the next collective and return it, or None if the scatter thread gets no more."""
        with self._lock:
            is_done = self._to_scatter.empty()
            if is_done and self._ending.final is None and self._client is not None and self._exchange is None:
                self._is_flat = True
            if self._is_flat or (is_done and self._failed.is_set()):
                return None
        return self._to_scatter.get()

    def _start(self) -> None:
        """Find out which ranks form this node, call `_meet` if there are several, and `_adopt` the uplink."""
        raise NotImplementedError

    def _meet(self, node: Node, store: BoundedStore, exchange: Exchange) -> None:
        """Meet the other ranks of the node, and create both groups."""
        others = {
            number: (one.pid, one.address)
            for number, one in enumerate(node.members)
            if number != node.local_rank
        }
        self._neighbours.meet(others)  # from here on a neighbour's end is detected
        store = store.below(f"node/{node.index}")
        times = self._config.join_timeout_s, self._config.timeout_s + SLACK_S
        for name in ("scatter", "gather"):
            self._groups.append(LocalGroup(store.below(name), node.local_rank, node.size, *times))
        self._watch = Watch(self._config, node, self._neighbours, self)
        self._exchange, self.local_size = exchange, node.size
        self._begin_thread("gather", lambda: self._gather(self._groups[1]))
        self._begin_thread("watch", self._watch.run)

    def _adopt(self, client: Communicator) -> None:
        with self._lock:
            self._client, final = client, self._ending.final
        self._ending.begin()
        if isinstance(final, ClosedError):
            client.begin_close()
        elif final is not None:
            client.abandon(final)

    def _begin_thread(self, name: str, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run, name=f"reduction-{name}", daemon=True))
        self._threads[-1].start()

    def _forward(self, submission: Submission) -> None:
        """Issue a collective that was submitted before it was known that there are no nodes."""

        def complete(done: Future) -> None:
            try:
                submission.future.set_result(done.value())
            except ReductionError as error:
                fail(submission.future, error)

        assert self._client is not None
        with self._lock:
            if self._submissions.pop(submission.seq, None) is None:
                return  # it has failed
        try:  # it now belongs to the client, which alone knows when the tensor is no longer written
            with on_stream(submission):
                result = self._client.submit(submission.request)
        except ReductionError as error:
            result = failed(error)
        result.add_done_callback(complete)

    def _issue(self, group: LocalGroup, submission: Submission) -> None:
        assert self._exchange is not None
        assert self._watch is not None
        self._watch.wait(submission.seq)
        with on_stream(submission):
            share = self._exchange.scatter(group, submission)
            self._watch.wait(None)
            result = None
            if share.outgoing is not None:
                assert self._client is not None
                result = self._client.submit(share.outgoing)
        self._to_gather.put((share, result))

    # ---- the gather thread ----

    def _gather(self, group: LocalGroup) -> None:
        try:
            while (item := self._to_gather.get()) is not None and not self._failed.is_set():
                if isinstance(item, _Last):
                    self.begin_close()
                    continue
                with self._failing(f"collective {item[0].submission.seq} failed in the node"):
                    self._complete(group, *item)
                del item
        finally:
            group.close()
            self._forget()
            assert self._watch is not None
            self._watch.stop()

    def _complete(self, group: LocalGroup, share: Share, result: Future | None) -> None:
        assert self._exchange is not None
        submission = share.submission
        if result is not None:
            _wait(result)
        with on_stream(submission):
            if result is not None:
                result.wait()  # makes this thread's stream wait for the result
            gathered = self._exchange.gather(group, share)
            with self._writing:
                if self.first_from(submission.seq) != submission.seq:
                    return  # it has failed
                self._exchange.write(share, gathered)
                with self._lock:
                    del self._submissions[submission.seq]
            try:
                submission.future.set_result(submission.request.tensor)
            except Exception:  # raised by a callback of the user's
                log.exception("a callback of a future failed")

    # ---- the end ----

    def first_from(self, seq: int) -> int | None:
        """See `Watched.first_from`."""
        with self._lock:
            return next((other for other in self._submissions if other >= seq), None)

    def fail(self, error: ReductionError, tell: Kind | None = None, number: int = 0) -> None:
        """Give the error to every collective that is not done, and end. For any thread; the first error counts."""
        with self._lock:
            if not self._ending.end(error):
                return
            # This must come before the user learns of the error and closes: the other nodes must get the error, not a
            # Goodbye.
            if self._client is not None and tell is not Kind.LEFT:
                self._client.abandon(error)
        if tell is not None:
            self._neighbours.tell(tell, number=number, code=code_to_others(error), text=str(error))
        for group in list(self._groups):
            group.abort()
        with self._writing, self._lock:
            submissions, self._submissions = self._submissions, {}
        for submission in submissions.values():
            try:
                fail(submission.future, error)
            except Exception:  # raised by a callback of the user's
                log.exception("a callback of a future failed")
        self._failed.set()
        self._to_scatter.put(None)
        self._to_gather.put(None)

    def _forget(self) -> None:
        """Free the memory of collectives that a failure left undone, and the memory kept for later ones."""
        with contextlib.suppress(queue.Empty):
            while self._failed.is_set():
                self._to_gather.get_nowait()
        if self._exchange is not None:
            self._exchange.close()

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn every exception into the end of the communicator; `what` describes the failed operation."""
        try:
            yield
        except ReductionError as error:
            self.fail(error, Kind.FAILED)
        except Exception as error:
            # Connections break because a neighbour ends or gives up; a pidfd or a note reports the reason.
            if self._failed.wait(CAUSE_S):
                return
            if isinstance(error, (RuntimeError, ProcessLookupError)):
                text = f"{what}: one of its ranks is gone or cannot be reached: {error}"
                self.fail(WorkerLost(text), Kind.FAILED)
                return
            log.exception("%s", what)
            self.fail(LocalProtocolError(f"{what}: {error!r}"), Kind.FAILED)


def _wait(result: Future) -> None:
    """Wait for the network's result; raise its error if it failed."""
    done = threading.Event()
    result.add_done_callback(lambda _: done.set())
    done.wait()
    result.value()


#: The open ones of this process. At exit they leave before the clients do.
_hierarchies: ClosedAtExit[Hierarchy] = ClosedAtExit()

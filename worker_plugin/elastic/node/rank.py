"""One rank of a worker that is a node: the node's first rank speaks for it with the other workers.

    user's thread     numbers the collective and returns; in `sync`, takes part in what the first rank tells
    fold thread       in the order of the collectives: exchanges shards within the node, folds this rank's, and hands
                      it to the first rank, which submits the whole to its `Elastic`
    deliver thread    in the same order: waits for the result and passes it on within the node, writes the tensor and
                      completes the future

If anything fails on one rank the whole worker fails: its connections to the others of the node end, and
with the first rank the worker leaves the job, which goes on without it. So a rank that dies takes its node out.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from reduction.errors import ClosedError, LocalProtocolError, ReductionError, WorkerLost, WorkersMissing

from worker_plugin.client import CLOSE_EXTRA_S
from worker_plugin.communicator import CLOSED, Request
from worker_plugin.config import PluginConfig
from worker_plugin.discovery.bounded_store import BoundedStore
from worker_plugin.elastic.communicator import Elastic
from worker_plugin.elastic.node.meeting import WorkerNode
from worker_plugin.hierarchy.client import SLACK_S
from worker_plugin.hierarchy.exchange import Exchange, Share, Submission, on_stream
from worker_plugin.hierarchy.local_group import LocalGroup
from worker_plugin.process.at_exit import ClosedAtExit
from worker_plugin.tensors.encoding import flat_of
from worker_plugin.tensors.futures import Future, fail, make_future, without_frames
from worker_plugin.tensors.gpu import streams
from worker_plugin.timeline.recorder import Recorder

log = logging.getLogger(__name__)

#: How long a rank of the node may wait in `sync`, in seconds: as long as it takes until the worker is
#: taken in, or others come. That a rank has died is noticed at once.
SYNC_S = 30 * 86400.0


@dataclass(slots=True, eq=False)
class _Sum:
    """A collective between the fold thread and the deliver thread."""

    share: Share
    #: On the first rank: the node's fold, and later the result.
    whole: torch.Tensor | None = None
    result: Future | None = None


class NodeRank:
    """One rank of a worker that is a node. Implements `Communicator`. All ranks of the node make theirs.

    Args:
        config: the settings.
        node: the ranks of this worker.
        store: of the node.
        make_worker: makes what speaks for the worker; called on the first rank, once the others are there.

    Raises:
        WorkersMissing: a rank of the node did not come within `join_timeout_s`.
    """

    def __init__(
        self, config: PluginConfig, node: WorkerNode, store: BoundedStore, make_worker: Callable[[], Elastic]
    ) -> None:
        self._node = node
        self._lock = threading.RLock()  # a signal handler may close
        #: Held while a tensor is written: nothing is written to one after its future has got an error.
        self._writing = threading.Lock()
        #: Held while the user's thread exchanges something in `sync`.
        self._talking = threading.RLock()
        self._error: ReductionError | None = None
        self._final: ReductionError | None = None
        self._issued = 0
        self._open: dict[int, Submission] = {}
        self._to_fold: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._to_deliver: queue.SimpleQueue[_Sum | None] = queue.SimpleQueue()
        self._exchange = Exchange(node, config.wire)
        timeouts = config.timeout_s + SLACK_S, config.timeout_s + SLACK_S, SYNC_S
        groups: list[LocalGroup] = []
        try:
            for name, timeout_s in zip(("fold", "deliver", "sync"), timeouts, strict=True):
                of_group = store.below(name)
                groups.append(
                    LocalGroup(of_group, node.local_rank, node.size, config.join_timeout_s, timeout_s)
                )
            #: On the first rank.
            self.worker = None if node.local_rank else make_worker()
        except Exception as error:
            for group in groups:
                group.close()
            if isinstance(error, ReductionError):
                raise
            text = f"the ranks of worker {node.index} could not meet: {error}"
            raise WorkersMissing(text) from None
        self._group: LocalGroup | None = groups[2]
        self._threads = [
            threading.Thread(target=run, args=(group,), name=f"reduction-node-{name}", daemon=True)
            for run, group, name in ((self._fold, groups[0], "fold"), (self._deliver, groups[1], "deliver"))
        ]
        _all.add(self)
        for thread in self._threads:
            thread.start()

    # ---- the user's thread ----

    @property
    def error(self) -> ReductionError | None:
        """The error that ended this communicator."""
        return self._error or (None if self.worker is None else self.worker.error)

    @property
    def job(self) -> str | None:
        """The job's name, on the first rank."""
        return None if self.worker is None else self.worker.job

    @property
    def local_size(self) -> int:
        """See `Communicator.local_size`."""
        return self._node.size

    @property
    def recorder(self) -> Recorder | None:
        """What the first rank has done lately between the workers; the others do nothing there."""
        return None if self.worker is None else self.worker.recorder

    def submit(self, request: Request) -> Future:
        """Issue the next collective; see `Communicator.submit`."""
        future = make_future(request.tensor)
        ready = streams.written(request.tensor)
        self._notice_worker()
        with self._lock:
            self._raise_if_over()
            submission = Submission(self._issued, request, future, ready)
            self._issued += 1
            self._open[submission.seq] = submission
            self._to_fold.put(submission)
        return future

    def connect(self) -> None:
        """Wait until the worker is in the job, or has found one that can take it in. All ranks call it."""
        if self.worker is not None:
            self.worker.connect()
        self.tell(torch.zeros(1, dtype=torch.uint8)).wait()

    def tell(self, message: torch.Tensor) -> Future:
        """Give all ranks of the node the first rank's bytes, in place. All of them call it in `sync`.

        Raises:
            WorkerLost: a rank of the node has ended or failed.
            ReductionError: this communicator is over.
        """
        self._notice_worker()
        with self._talking:
            try:
                self._raise_if_over()
                assert self._group is not None  # or it is over
                self._group.broadcast(message)
            except RuntimeError as error:
                self.abandon(self._lost(error))
            finally:
                self._end_talk()
            self._raise_if_over()
        future = make_future(message)
        future.set_result(message)
        return future

    def abandon(self, error: ReductionError) -> None:
        """Fail on all ranks of the node; the other workers go on. Any thread; nothing if it is over already."""
        without_frames(error)
        with self._lock:
            if self._final is not None:
                return
            self._final = error
            if not isinstance(error, ClosedError):
                self._error = error
        if self.worker is not None:
            self.worker.abandon(error)
        self._end(error)

    def begin_close(self) -> None:
        """Leave in the background; see `Communicator.begin_close`."""
        with self._lock:
            if self._final is not None:
                return
            count = len(self._open)
            error = self._final = ClosedError(
                f"closed with {count} collectives in flight" if count else CLOSED
            )
        if self.worker is not None:
            self.worker.begin_close()
        self._end(error)

    def close(self) -> None:
        """Leave, and return when that is done; see `Communicator.close`."""
        self.begin_close()
        if threading.current_thread() in self._threads:
            return
        if self.worker is not None:
            self.worker.close()
        for thread in self._threads:
            thread.join(CLOSE_EXTRA_S)

    def leave(self) -> None:
        """Leave when all that was issued is done; see `Communicator.leave`."""
        self._to_fold.put(None)

    def _notice_worker(self) -> None:
        """Have the whole node fail if its worker has."""
        if self.worker is not None and (error := self.worker.error) is not None:
            self.abandon(error)

    def _raise_if_over(self) -> None:
        if self._final is not None:
            raise self._final.with_traceback(None)  # or each raise would make it longer

    def _lost(self, error: Exception) -> WorkerLost:
        return WorkerLost(
            f"another rank of {self._node.name(self._node.local_rank)} has ended or failed, see its log: {error}"
        )

    def _end(self, error: ReductionError) -> None:
        with self._writing, self._lock:
            left, self._open = self._open, {}
        for submission in left.values():
            with _logged():
                fail(submission.future, error)
        self._to_fold.put(None)
        # The fold thread may wait for ranks that wait for this one to deliver, or to end its connections.
        self._to_deliver.put(None)
        self._end_talk()

    def _end_talk(self) -> None:
        """Let the others of the node see that this rank is over, unless this is not the time for it."""
        if self._final is None or not self._talking.acquire(blocking=False):
            return  # `tell` does it
        try:
            group, self._group = self._group, None
            if group is not None:
                group.close()
        finally:
            self._talking.release()

    # ---- the fold thread ----

    def _fold(self, group: LocalGroup) -> None:
        try:
            while (submission := self._to_fold.get()) is not None and self._final is None:
                with self._failing(), on_stream(submission):
                    self._to_deliver.put(self._fold_one(group, submission))
                del submission  # otherwise this variable would keep its memory until the next one comes
        finally:
            group.close()
            self._to_deliver.put(None)

    def _fold_one(self, group: LocalGroup, submission: Submission) -> _Sum:
        share, request, node = self._exchange.scatter(group, submission), submission.request, self._node
        shard = share.rail.tensor
        row = share.shards.most * shard.element_size()
        mine = torch.zeros(row, dtype=torch.uint8, device=shard.device)
        mine.view(shard.dtype)[: shard.numel()].copy_(shard)
        rows = node.size if self.worker is not None else 0
        gathered = torch.empty(rows * row, dtype=torch.uint8, device=shard.device)
        group.all_to_all(
            gathered,
            mine,
            [row if rows else 0] * node.size,
            [0 if rank else row for rank in range(node.size)],
        )
        if self.worker is None:
            return _Sum(share)
        whole = torch.empty(request.tensor.numel(), dtype=shard.dtype, device=shard.device)
        share.shards.unpack(gathered.view(shard.dtype).view(node.size, share.shards.most), whole)
        asked = Request(whole, request.dtype, request.op, request.fingerprint, request.slices)
        return _Sum(share, whole, self.worker.submit(asked))

    # ---- the deliver thread ----

    def _deliver(self, group: LocalGroup) -> None:
        try:
            while (one := self._to_deliver.get()) is not None:
                if self._final is not None:
                    continue
                with self._failing(), on_stream(one.share.submission):
                    self._deliver_one(group, one)
                del one
        finally:
            group.close()
            self._exchange.close()
            with self._lock:
                is_left = self._final is None  # by `leave`
            if is_left and self.worker is not None:
                self.worker.leave()

    def _deliver_one(self, group: LocalGroup, one: _Sum) -> None:
        submission = one.share.submission
        tensor = submission.request.tensor
        if one.result is not None:
            one.result.wait()
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        if one.whole is not None:
            flat.copy_(one.whole)
        group.broadcast(flat.view(torch.uint8))
        with self._writing:
            with self._lock:
                if self._open.pop(submission.seq, None) is None:
                    return  # it has failed
            with torch.inference_mode(tensor.is_inference()):
                flat_of(tensor).copy_(flat)
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
        with _logged():
            submission.future.set_result(tensor)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Let every exception end the communicator."""
        try:
            yield
        except ReductionError as error:
            self.abandon(error)
        except RuntimeError as error:  # connections break because another rank ends or gives up
            self.abandon(self._lost(error))
        except Exception as error:
            log.exception("a collective failed in the node")
            self.abandon(LocalProtocolError(f"a collective failed in the node: {error!r}"))


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log an exception of a callback of the user's."""
    try:
        yield
    except Exception:
        log.exception("a callback of a future failed")


#: Those of this process that have not ended. It is made after that of the workers, so it is closed first.
_all: ClosedAtExit[NodeRank] = ClosedAtExit()

"""`Order`: which collectives of a group wait for which, although two engines perform them.

Gloo makes a barrier wait for all collectives called before it, and nothing else. Its threads perform everything in
flight concurrently, even in the same memory (torch 2.13: ProcessGroupGloo::runLoop). NCCL performs all collectives of a
group in the order of the calls. docs/process-group.md describes what holds here.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future as Milestone
from typing import Any, TypeVar

import torch
from reduction.shortage import failure_of
from torch.distributed import Work

from worker_plugin.process_group.completions import completions
from worker_plugin.process_group.work import AllReduceWork
from worker_plugin.tensors.futures import Future, fail, raise_again

#: Memory range: the address of its first byte, and that after its last one.
Span = tuple[int, int]
_W = TypeVar("_W", bound=Work | None)


class Order:
    """The collectives of a group that are in flight. For any thread.

    A caller that must wait for a collective on the same memory waits in the call. On Gloo such a program has no
    defined result, so this does not deadlock any program that is correct there. A barrier waits on a thread: on Gloo
    its call returns immediately, and the caller may then do what another rank needs to reach its own all-reduce.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may destroy the group
        #: Collectives that go through the reducers.
        self._all_reduces: dict[AllReduceWork, list[Span]] = {}
        #: Collectives of the inner group. Their Works hold their tensors, so only their callers hold the Works.
        self._delegated: list[tuple[weakref.ref[Work], list[Span]]] = []
        #: Done when the inner group has begun the latest barrier. It fails if an all-reduce before the barrier failed,
        #: and so does everything after it, because the inner group numbers its collectives in the same way on all
        #: ranks.
        self._begun: Milestone[None] = Milestone()
        self._begun.set_result(None)

    def all_reduce(self, tensors: Sequence[torch.Tensor], issue: Callable[[], list[Future]]) -> AllReduceWork:
        """Issue an all-reduce, after everything in flight in its tensors' memory.

        Raises:
            Exception: the error of a collective in flight there, or what `issue` raises.
        """
        spans = list(_spans(tensors))
        self._wait_in(spans, lambda: [*self._all_reduces.items(), *self._of_inner_group()])
        work = AllReduceWork(tensors, issue(), self._forget)
        with self._lock:
            self._all_reduces[work] = spans
        if work.is_completed():  # possibly before it was added
            self._forget(work)
        return work

    def delegate(self, call: Callable[..., _W], *arguments: Any, **named: Any) -> _W:
        """Have the inner group perform a collective, after the all-reduces in flight in its tensors' memory.

        Raises:
            Exception: the error of one of those, or what `call` raises.
        """
        raise_again(self._begun.exception())
        spans = list(_spans((*arguments, *named.values())))
        self._wait_in(spans, self._all_reduces.items)
        work = call(*arguments, **named)
        if work is not None:
            with self._lock:
                self._delegated = [(weakref.ref(one), its) for one, its in self._of_inner_group()]
                self._delegated.append((weakref.ref(work), spans))
        return work

    def barrier(self, call: Callable[[], Work]) -> Work:
        """Have the inner group perform a barrier, which waits for its own collectives, after the all-reduces in flight.

        Waiting for it raises the error of any of those.
        """
        with self._lock:
            before, previous = list(self._all_reduces), self._begun
            if before:
                self._begun = Milestone()
            begun = self._begun
        if not before:
            raise_again(begun.exception())
            return call()
        done: Future = torch.futures.Future()

        def run() -> None:
            try:
                raise_again(previous.exception())
                for work in before:
                    work.wait()
                barrier = call()
            except Exception as error:
                begun.set_exception(error)
                fail(done, error)
                return
            begun.set_result(None)
            try:
                barrier.wait()
            except Exception as error:
                fail(done, error)
            else:
                done.set_result(torch.empty(0))

        try:
            completions.submit(run)
        except RuntimeError as error:
            failure = failure_of("cannot start a thread that waits for a barrier", error)
            begun.set_exception(failure)  # otherwise everything after it would wait forever
            fail(done, failure)
        return AllReduceWork([], [done])

    def wait(self) -> None:
        """Wait until the all-reduces in flight have a result or an error."""
        if self._pid != os.getpid():
            return  # a forked child, whose parent's threads complete them
        with self._lock:
            works = list(self._all_reduces)
        for work in works:
            with contextlib.suppress(Exception):
                work.wait()

    def _wait_in(self, spans: list[Span], flying: Callable[[], Iterable[tuple[Work, list[Span]]]]) -> None:
        with self._lock:
            works = [
                work
                for work, others in flying()
                if any(start < stop and begin < end for start, end in spans for begin, stop in others)
            ]
        for work in works:
            work.wait()

    def _of_inner_group(self) -> Iterator[tuple[Work, list[Span]]]:
        for reference, spans in self._delegated:
            work = reference()
            if work is not None and not work.is_completed():
                yield work, spans

    def _forget(self, work: AllReduceWork) -> None:
        with self._lock:
            self._all_reduces.pop(work, None)


def _spans(values: Iterable[Any]) -> Iterator[Span]:
    """Yield the memory ranges of the tensors in a collective's arguments."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _spans(value)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
            yield value.data_ptr(), value.data_ptr() + (last + 1) * value.element_size()

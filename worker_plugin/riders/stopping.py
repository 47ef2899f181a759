"""Stop all ranks together: a request to stop one rank reaches all of them in the same step."""

from __future__ import annotations

import contextlib
import threading

import torch
import torch.distributed as dist
from reduction.errors import ReductionError

from worker_plugin.process.stop_request import is_asked
from worker_plugin.riders.table import AllReduce
from worker_plugin.tensors.futures import Future


class Stopping:
    """Whether the ranks of one communicator should stop. All ranks call `ask` equally often.

    Args:
        is_at_once: whether an answer includes requests from the same step, which costs a round trip. Otherwise it
            is the answer of the previous step, which has already arrived.
        notices: the cloud whose notices count as well; see `stop_request.arm`.
    """

    def __init__(self, *, is_at_once: bool, notices: str | None = None) -> None:
        self._is_at_once, self._notices = is_at_once, notices
        self._before: Future | None = None
        self._stops = False

    def ask(self, all_reduce: AllReduce) -> bool:
        """Return whether any rank was asked to stop; the same on all ranks, and permanently true after that."""
        asked = is_asked(self._notices)
        if self._stops:
            return True
        flag = torch.tensor([asked], dtype=torch.int32)
        answer, self._before = self._before, all_reduce(flag, dist.ReduceOp.MAX)
        if self._is_at_once:
            answer, self._before = self._before, None
        if answer is not None:
            self._stops = bool(answer.wait())
        if self._stops:
            self.settle()
        return self._stops

    def settle(self) -> None:
        """Wait for the sum of the last step, which would fail if this rank closed before all ranks have begun it.

        It waits only on the main thread. From any other thread it does not, because the main thread may be needed.
        """
        last, self._before = self._before, None
        if last is not None and threading.current_thread() is threading.main_thread():
            # An error means that another rank has failed, which the next collective reports too.
            with contextlib.suppress(ReductionError):
                last.wait()

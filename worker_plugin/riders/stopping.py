"""Ranks that stop together: what asks one of them to stop is told to all, in the same step."""

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
    """Whether the ranks of one communicator are to stop. All of them ask equally often.

    Args:
        is_at_once: whether an answer counts what was asked in the same step, which costs a round trip. Otherwise it
            is that of the step before, which is there already.
        notices: whose notices count as well; see `stop_request.arm`.
    """

    def __init__(self, *, is_at_once: bool, notices: str | None = None) -> None:
        self._is_at_once, self._notices = is_at_once, notices
        self._before: Future | None = None
        self._stops = False

    def ask(self, all_reduce: AllReduce) -> bool:
        """Return whether any rank was asked to stop; the same on all ranks, and true for ever once it was."""
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
        """Wait for the sum of the last step: a rank that closed before all have begun it would end it with an error.

        Not on other threads than the main one, which may be needed for that.
        """
        last, self._before = self._before, None
        if last is not None and threading.current_thread() is threading.main_thread():
            # Its error is that another rank has failed, which the next collective says too.
            with contextlib.suppress(ReductionError):
                last.wait()

"""The cost of observing a job: a state that records nothing, and one that is polled all the time.

Every state records its latest collectives and its totals, so "off" is a state whose recorder is replaced here.
"On" writes a trace at its end, logs a line every 10 s, and calls `state.stats()` after each collective.
"""

from __future__ import annotations

import tempfile
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from reduction.model import Collective

from worker_plugin import ReductionState, client
from worker_plugin.timeline.recorder import Progress, Recorder


class _NoProgress(Progress):
    def on_push(self, link: int, nbytes: int) -> None:
        pass

    def on_result(self, link: int) -> None:
        pass

    def finish(self) -> None:
        pass


class _NoRecorder(Recorder):
    def begin(self, seq: int, collective: Collective) -> Progress:
        return _NoProgress(seq, collective, self.totals)


class UnwatchedState(ReductionState):
    """A state that records nothing about its collectives."""

    def __init__(self, reducers: Any = None, **settings: Any) -> None:
        super().__init__(reducers, report_s=0, **settings)

    def _connect(self, model: str) -> Any:
        with patch.object(client, "Recorder", _NoRecorder):
            return super()._connect(model)


class WatchedState(ReductionState):
    """A state with a trace and periodic reports, whose statistics are read after every collective."""

    def __init__(self, reducers: Any = None, **settings: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="reduction-bench-trace-")
        super().__init__(reducers, report_s=10, trace=self._folder.name, **settings)

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        """Reduce a tensor, and read the statistics."""
        future = super().all_reduce(tensor, op)
        self.stats()
        return future

    def close(self) -> None:
        """Close the state, and delete its trace."""
        super().close()
        self._folder.cleanup()

"""A DDP hook that kills a reducer at a chosen moment of a chosen bucket."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

from worker_plugin import reduction_hook


class Strike:
    """Kills once: before the bucket is submitted, while it is in flight, or when it is answered."""

    def __init__(self, pid: int, phase: str) -> None:
        self.killed = threading.Event()
        self._pid = pid
        self._phase = phase

    def hook(self, state: Any, bucket: GradBucket, *, is_moment: bool) -> torch.futures.Future[torch.Tensor]:
        """Do what `reduction_hook` does, and strike if this is the moment."""
        phase = self._phase if is_moment else ""
        if phase == "before":
            self._kill()
        if phase == "under way":  # a stopped process never answers what it receives
            os.kill(self._pid, signal.SIGSTOP)
        future = reduction_hook(state, bucket)
        if phase == "under way":
            self._kill()
        if phase == "answered":  # this rank has the result, but the others perhaps not
            return future.then(lambda done: (self._kill(), done.value())[1])
        return future

    def _kill(self) -> None:
        if not self.killed.is_set():
            self.killed.set()
            os.kill(self._pid, signal.SIGKILL)

"""A process group of the ranks of one node, for one thread: bytes go from each to all, nothing is added.

Gloo for tensors on the CPU, over loopback; NCCL for those on GPUs, which has not been run yet. Not the group's own
reduce-scatter: in which order that adds is its own business, and differs from backend to backend.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

#: Its stubs lack half of what is used here.
_c10d: Any = _distributed_c10d

#: Strong references, so that a forked child does not destroy the groups of its parent: Gloo's destructor would wait
#: for threads that are not there.
_groups: set[LocalGroup] = set()


class LocalGroup:
    """All ranks of the node make it, and call it, in the same order. Every method blocks.

    Args:
        store: of this group alone.
        rank: local rank.
        size: ranks of the node.
        making_s: how long the others may take to come, in seconds.
        timeout_s: how long a collective may take, in seconds.
    """

    def __init__(self, store: Store, rank: int, size: int, making_s: float, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timedelta(seconds=timeout_s)
        options = _c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=making_s)
        options._threads = 1  # there is one collective at a time
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self._gloo: Any = _c10d.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
        self._nccl: Any = None
        #: What the last collective used. Gloo's thread may still hold it, and would wait for the GIL to free it while
        #: the destructor of the group, with the GIL, waits for that thread.
        self._last: Any = None
        _groups.add(self)

    def all_to_all(
        self, out: torch.Tensor, mine: torch.Tensor, out_sizes: list[int], sizes: list[int]
    ) -> None:
        """Send `sizes[i]` bytes to rank i, receive as many as it sends."""
        options = _c10d.AllToAllOptions()
        options.timeout = self._timeout
        self._finish(self._of(mine).alltoall_base(out, mine, out_sizes, sizes, options), out, mine)

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> None:
        """Receive everybody's bytes, as many from each, in the order of the ranks."""
        options = _c10d.AllgatherOptions()
        options.timeout = self._timeout
        self._finish(self._of(mine)._allgather_base(out, mine, options), out, mine)

    def abort(self) -> None:
        """Have a collective on GPUs that is under way fail; any thread. Gloo's breaks when a neighbour closes."""
        if (nccl := self._nccl) is not None:  # if it is let go of without, it warns, and may wait
            nccl.abort()

    def close(self) -> None:
        """End the connections; others' collectives fail. Not while one is under way here."""
        self.abort()
        self._gloo = self._nccl = None
        self._last = None
        _groups.discard(self)

    def _finish(self, work: Any, out: torch.Tensor, mine: torch.Tensor) -> None:
        self._last = work, out, mine
        work.wait()
        if mine.is_cuda:  # NCCL's wait is one of the stream
            torch.cuda.current_stream(mine.device).synchronize()

    def _of(self, tensor: torch.Tensor) -> Any:
        if not tensor.is_cuda:
            return self._gloo
        if self._nccl is None:  # the first such collective is the same on all ranks
            options = _c10d.ProcessGroupNCCL.Options()
            options._timeout = self._timeout  # NCCL's watchdog knows no other, and ends the process by it
            store = PrefixStore("nccl", self._store)
            self._nccl = _c10d.ProcessGroupNCCL(store, self._rank, self._size, options)
        return self._nccl

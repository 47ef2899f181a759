"""A process group of the ranks of one node, for one thread: it moves bytes between ranks without adding them.

Tensors on the CPU go through Gloo over loopback, tensors on GPUs through NCCL, which has not been run yet. The
backends' own reduce-scatter is not used because the order of its additions differs between backends.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from worker_plugin.discovery.bounded_store import EXTRA_S, BoundedStore

#: Its stubs lack half of what this module uses.
_c10d: Any = _distributed_c10d

#: Strong references, so that a forked child does not destroy its parent's groups. Gloo's destructor would wait for
#: threads that a child does not have.
_groups: set[LocalGroup] = set()


class LocalGroup:
    """A group of a node's ranks. All create their groups and call their methods in the same order. Methods block.

    Args:
        store: used by this group alone.
        rank: this rank's local rank.
        size: number of ranks of the node.
        making_s: how long the other ranks may take to create theirs, in seconds.
        timeout_s: how long a collective may take, in seconds.

    Raises:
        WorkerLost: see `BoundedStore.run`.
        RuntimeError: another rank is gone, or did not join.
    """

    def __init__(self, store: BoundedStore, rank: int, size: int, making_s: float, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timedelta(seconds=timeout_s)
        options = _c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=making_s)
        options._threads = 1  # one is enough for one collective at a time
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]

        def make(raw: Store) -> Any:
            return _c10d.ProcessGroupGloo(PrefixStore("gloo", raw), rank, size, options)

        self._gloo: Any = store.run(make, making_s + EXTRA_S)
        self._nccl: Any = None
        #: The tensors of the last collective. Gloo's thread may still refer to them. If it had to free them, it would
        #: wait for the GIL, while the group's destructor holds the GIL and waits for that thread.
        self._last: Any = None
        _groups.add(self)

    def all_to_all(
        self, out: torch.Tensor, mine: torch.Tensor, out_sizes: list[int], sizes: list[int]
    ) -> None:
        """Send `sizes[i]` bytes of `mine` to rank i, and receive `out_sizes[i]` bytes from it."""
        options = _c10d.AllToAllOptions()
        options.timeout = self._timeout
        self._finish(self._of(mine).alltoall_base(out, mine, out_sizes, sizes, options), out, mine)

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> None:
        """Receive the bytes of all ranks, in the order of the ranks. Each sends the same number."""
        options = _c10d.AllgatherOptions()
        options.timeout = self._timeout
        self._finish(self._of(mine)._allgather_base(out, mine, options), out, mine)

    def broadcast(self, data: torch.Tensor) -> None:
        """Receive the bytes of local rank 0, in place."""
        options = _c10d.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.timeout = self._timeout
        self._finish(self._of(data).broadcast([data], options), data, data)

    def abort(self) -> None:
        """Make a GPU collective under way fail; for any thread. Gloo's collectives fail when a neighbour closes."""
        if (nccl := self._nccl) is not None:  # destroying a group without an abort warns, and may block
            nccl.abort()

    def close(self) -> None:
        """Close the connections, so that the others' collectives fail. Not while one is under way on this rank."""
        self.abort()
        self._gloo = self._nccl = None
        self._last = None
        _groups.discard(self)

    def _finish(self, work: Any, out: torch.Tensor, mine: torch.Tensor) -> None:
        self._last = work, out, mine
        work.wait()
        if mine.is_cuda:  # NCCL's wait() only makes the stream wait
            torch.cuda.current_stream(mine.device).synchronize()

    def _of(self, tensor: torch.Tensor) -> Any:
        if not tensor.is_cuda:
            return self._gloo
        if self._nccl is None:  # all ranks get here in the same collective
            options = _c10d.ProcessGroupNCCL.Options()
            options._timeout = self._timeout  # the only one that NCCL's watchdog knows
            store = PrefixStore("nccl", self._store.raw)
            self._nccl = _c10d.ProcessGroupNCCL(store, self._rank, self._size, options)
        return self._nccl

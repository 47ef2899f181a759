"""Copies of GPU tensors to host memory and back, beside the user's streams.

    user's thread    records an event where the tensor is written, and returns
    download thread  waits for it; has the tensor copied, batch by batch, to page-locked memory on its own stream;
                     hands the collective on once its first batch is there
    loop thread      pushes chunks; waits for the batch that contains a chunk, which arrives over PCIe sooner than
                     the network can send the earlier data
    staging thread   copies a result back on another stream, and completes the future on it

Neither of our two streams ever waits for the user's stream. So they soon become idle, whatever the GPU is
computing, and freeing page-locked memory can wait for them. The user's stream waits for ours only through the
future.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import mmap
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.encoding import Encoding

log = logging.getLogger(__name__)

#: madvise's MADV_WIPEONFORK (Linux 4.14), which Python does not define. If a forked child shared these pages, the
#: kernel would give this process copies of them at its next write, while the GPU kept using the originals.
#: MADV_DONTFORK would not work: the child's `mmap` object would unmap whatever the child has at these addresses by
#: then.
_WIPE_ON_FORK = 18
#: How long process exit waits for page-locked memory to be unlocked, in seconds.
STOP_S = 2.0


class CudaEvent(Protocol):
    """A `StreamMark`, or its stand-in in tests."""

    def synchronize(self) -> None:
        """Wait for it."""

    def delay(self, stream: torch.cuda.Stream) -> None:
        """See `StreamMark.delay`."""


def holds(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on a GPU."""
    return tensor.is_cuda


def written(tensor: torch.Tensor) -> CudaEvent | None:
    """Return the event after which the tensor may be read, or None if it is on the CPU. For the user's thread."""
    if not holds(tensor):
        return None
    return StreamMark(torch.cuda.current_stream(tensor.device))


class StreamMark:
    """The moment at which a GPU has done everything put on a stream so far."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # or waiting would take a core
        self._event.record(stream)

    def synchronize(self) -> None:
        """Wait for it."""
        # Without this, a thread whose current device is GPU 0 would create a context there, which takes 0.5 GB.
        with torch.cuda.device(self._device):
            self._event.synchronize()

    def delay(self, stream: torch.cuda.Stream) -> None:
        """Make everything that is put on a stream from now on wait for this moment."""
        stream.wait_event(self._event)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a high-priority stream, for work beside the user's.

    The priority does more than let our work go first. torch hands out streams round-robin from one pool per
    priority. Callbacks of futures and NCCL get low-priority ones, and ours must not wait for them (pytorch #173729).
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


_threads = threading.local()


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return this thread's stream for work beside the user's.

    It is always the same one, because torch caches GPU memory by stream.
    """
    streams: dict[torch.device, torch.cuda.Stream] = _threads.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = _new_stream(device)
    return streams[device]


class PendingCopy:
    """A copy of a tensor to host memory in progress, in batches. For one thread at a time."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, CudaEvent]] = deque()

    def add(self, first: int, event: CudaEvent) -> None:
        """Add a batch.

        Args:
            first: its first element, an index into the flat tensor.
            event: occurs when the batch is in host memory.
        """
        self._batches.append((first, event))

    def wait(self, stop: int) -> None:
        """Wait for the elements before `stop`.

        Raises:
            RuntimeError: the GPU has failed.
        """
        while self._batches and self._batches[0][0] < stop:
            self._batches[0][1].synchronize()
            self._batches.popleft()


class Gpu:
    """One GPU's streams for copies, and the host memory for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down, self._up = _new_stream(device), _new_stream(device)
        self.pool = ArenaPool(partial(_page_locked, device, (self._down, self._up)))

    def fetch(self, encoding: Encoding, host: torch.Tensor, first: int, stop: int) -> CudaEvent:
        """Start to copy elements [first, stop) to host memory; return an event that occurs when they are there."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._down):
            encoding.fetch(host, first, stop)
            return StreamMark(self._down)

    def copy_back(self, write: Callable[[], None], complete: Callable[[], None]) -> None:
        """Copy a result to its tensor and complete its future. Waiters for the future then also wait for the copy.

        Args:
            write: starts the copies on this GPU's copy stream.
            complete: completes the future.
        """
        with torch.cuda.device(self._device), torch.cuda.stream(self._up):
            try:
                write()
                copied = StreamMark(self._up)
                complete()
                copied.synchronize()  # from here on the host memory may be reused
            except BaseException:  # a copy failed, or a user's callback raised
                self._up.synchronize()
                raise


def _page_locked(device: torch.device, streams: tuple[torch.cuda.Stream, ...], nbytes: int) -> torch.Tensor:
    """Return page-locked host memory, which a GPU can copy to and from in the background.

    torch's own allocator is not used, because it rounds sizes up to a power of two.

    Raises:
        MemoryError: the driver refused to lock that many bytes.
    """
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    _begin_unlocking()
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(_WIPE_ON_FORK)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    buffer.zero_()  # faults all pages in now; otherwise the driver would do it while holding its lock
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = cudart.cudaHostRegister(buffer.data_ptr(), nbytes, 0)
    if code != cudart.cudaError.success:
        text = cudart.cudaGetErrorString(code)
        raise MemoryError(f"{nbytes} bytes of host memory could not be page-locked: {text}")
    weakref.finalize(buffer, _drop, os.getpid(), device, buffer.data_ptr(), streams, memory).atexit = False
    return buffer


#: Tasks of the unlocking thread; None ends it.
_to_unlock: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
_unlocking: threading.Thread | None = None
_unlocking_lock = threading.Lock()


def _drop(pid: int, *locked: Any) -> None:
    """Hand memory to the thread that unlocks it, because unlocking may wait for everything the GPU is doing.

    This runs wherever garbage is collected, possibly with any lock held. So it takes no lock (`SimpleQueue.put` takes
    none) and starts no thread, since `_begin_unlocking` has already done that.
    """
    if os.getpid() == pid:  # a forked child has neither the GPU nor the pages
        _to_unlock.put(partial(_unlock, *locked))


def _begin_unlocking() -> None:
    """Start the thread that `_drop` needs, unless it is running."""
    global _unlocking
    with _unlocking_lock:
        if _unlocking is None:
            _unlocking = threading.Thread(target=_run_unlocking, name="reduction-unlock", daemon=True)
            _unlocking.start()


def _run_unlocking() -> None:
    while (step := _to_unlock.get()) is not None:
        step()
        del step  # it would keep the memory until the next one


def _stop_unlocking() -> None:
    """End the thread before the interpreter ends. Do not wait longer than STOP_S for a busy GPU."""
    if _unlocking is not None:
        _to_unlock.put(None)
        _unlocking.join(STOP_S)


def _forget_unlocking() -> None:
    """Reset a forked child, which has no such thread and nothing to unlock."""
    global _to_unlock, _unlocking, _unlocking_lock
    _to_unlock, _unlocking, _unlocking_lock = queue.SimpleQueue(), None, threading.Lock()


os.register_at_fork(after_in_child=_forget_unlocking)
# Registered at import, so that it runs after communicators have left: atexit runs the most recently registered function
# first.
atexit.register(_stop_unlocking)


def _unlock(
    device: torch.device, address: int, streams: tuple[torch.cuda.Stream, ...], memory: mmap.mmap
) -> None:
    """Unlock memory once no copy uses it any more. The argument keeps it alive until then."""
    # A RuntimeError means that the GPU has failed. Then it will not copy anything any more.
    with contextlib.suppress(RuntimeError), torch.cuda.device(device):
        for stream in streams:
            stream.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

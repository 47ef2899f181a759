"""A GPU's tensors on their way to host memory and back, beside the user's streams.

    user's thread    records an event where the tensor is written, and returns
    download thread  waits for it; has the tensor copied, batch by batch, to page-locked memory on a stream of its
                     own; hands the collective on when its first batch is there
    loop thread      pushes chunks; waits for the batch that one lies in, which PCIe brings sooner than a network
                     takes what was there before
    staging thread   copies a result back on another stream, and completes the future on it

Neither of our two streams ever waits for the user's stream. So they are idle soon, whatever the GPU
computes, and freeing page-locked memory can wait for them. The user's stream waits for ours only
through the future.
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

#: madvise's MADV_WIPEONFORK (Linux 4.14), which Python does not know. If a forked child shared
#: these pages, the kernel would give this process copies of them at its next write, while the GPU
#: went on with the originals. MADV_DONTFORK would not do: the child's `mmap` object would unmap
#: whatever the child has at these addresses by then.
_WIPE_ON_FORK = 18
#: How long the exit of the process waits for page-locked memory to be unlocked, in seconds.
STOP_S = 2.0


class CudaEvent(Protocol):
    """A `StreamMark`, or what stands for one in tests."""

    def synchronize(self) -> None:
        """Wait for it."""

    def delay(self, stream: torch.cuda.Stream) -> None:
        """See `StreamMark.delay`."""


def holds(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on a GPU."""
    return tensor.is_cuda


def written(tensor: torch.Tensor) -> CudaEvent | None:
    """Return the event after which the tensor may be read; None if it is on the CPU. The user's thread."""
    if not holds(tensor):
        return None
    return StreamMark(torch.cuda.current_stream(tensor.device))


class StreamMark:
    """The moment at which a GPU has done everything that was put on a stream until now."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # or waiting would take a core
        self._event.record(stream)

    def synchronize(self) -> None:
        """Wait for it."""
        # Without this a thread whose current device is GPU 0 would make a context there, which
        # takes 0.5 GB.
        with torch.cuda.device(self._device):
            self._event.synchronize()

    def delay(self, stream: torch.cuda.Stream) -> None:
        """Let everything that is put on a stream from now on wait for this moment."""
        stream.wait_event(self._event)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream of high priority, for work beside the user's.

    The priority is not only there to go first. torch hands out streams from one pool per priority,
    in turns: callbacks of futures and NCCL get those of low priority, and ours must not wait for
    them (pytorch #173729).
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
    """A copy of a tensor to host memory that is under way, in batches; used by one thread at a time."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, CudaEvent]] = deque()

    def add(self, first: int, event: CudaEvent) -> None:
        """Add a batch.

        Args:
            first: its first element, an index into the flat tensor.
            event: happens when the batch is in host memory.
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
        """Start to copy elements [first, stop) to host memory; return the event that happens when they are there."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._down):
            encoding.fetch(host, first, stop)
            return StreamMark(self._down)

    def copy_back(self, write: Callable[[], None], complete: Callable[[], None]) -> None:
        """Copy a result to its tensor and complete its future; who waits for the future then waits for the copy.

        Args:
            write: starts the copies, on this GPU's stream for them.
            complete: completes the future.
        """
        with torch.cuda.device(self._device), torch.cuda.stream(self._up):
            try:
                write()
                copied = StreamMark(self._up)
                complete()
                copied.synchronize()  # from here on the host memory may be used again
            except BaseException:  # a copy failed, or a callback of the user's raised
                self._up.synchronize()
                raise


def _page_locked(device: torch.device, streams: tuple[torch.cuda.Stream, ...], nbytes: int) -> torch.Tensor:
    """Return page-locked host memory, to and from which a GPU copies in the background.

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
    buffer.zero_()  # faults all pages in now; otherwise the driver would, with its lock held
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = cudart.cudaHostRegister(buffer.data_ptr(), nbytes, 0)
    if code != cudart.cudaError.success:
        text = cudart.cudaGetErrorString(code)
        raise MemoryError(f"{nbytes} bytes of host memory could not be page-locked: {text}")
    weakref.finalize(buffer, _drop, os.getpid(), device, buffer.data_ptr(), streams, memory).atexit = False
    return buffer


#: What the unlocking thread does next; None ends it.
_to_unlock: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
_unlocking: threading.Thread | None = None
_unlocking_lock = threading.Lock()


def _drop(pid: int, *locked: Any) -> None:
    """Hand memory to the thread that unlocks it, because unlocking may wait for everything that the GPU does.

    This runs wherever garbage is collected, with any lock held. So it takes no lock
    (`SimpleQueue.put` takes none) and starts no thread: `_begin_unlocking` has started it.
    """
    if os.getpid() == pid:  # a forked child has neither the GPU nor the pages
        _to_unlock.put(partial(_unlock, *locked))


def _begin_unlocking() -> None:
    """Start the thread that `_drop` needs, unless it runs."""
    global _unlocking
    with _unlocking_lock:
        if _unlocking is None:
            _unlocking = threading.Thread(target=_run_unlocking, name="reduction-unlock", daemon=True)
            _unlocking.start()


def _run_unlocking() -> None:
    while (step := _to_unlock.get()) is not None:
        step()
        del step  # it holds the memory until the next one


def _stop_unlocking() -> None:
    """End the thread before the interpreter ends; a GPU that is busy for longer than STOP_S is not waited for."""
    if _unlocking is not None:
        _to_unlock.put(None)
        _unlocking.join(STOP_S)


def _forget_unlocking() -> None:
    """A forked child has no such thread, and nothing to unlock."""
    global _to_unlock, _unlocking, _unlocking_lock
    _to_unlock, _unlocking, _unlocking_lock = queue.SimpleQueue(), None, threading.Lock()


os.register_at_fork(after_in_child=_forget_unlocking)
# Registered at import, so that it runs after communicators have left: atexit runs the last one
# registered first.
atexit.register(_stop_unlocking)


def _unlock(
    device: torch.device, address: int, streams: tuple[torch.cuda.Stream, ...], memory: mmap.mmap
) -> None:
    """Unlock memory when no copy uses it any more; the argument keeps it alive until then."""
    # A RuntimeError says that the GPU has failed. Then it copies nothing any more.
    with contextlib.suppress(RuntimeError), torch.cuda.device(device):
        for stream in streams:
            stream.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

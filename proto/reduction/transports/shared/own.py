"""Memory of this process that others on the same host may read.

It consists of regions, which are anonymous files (memfd_create(2)). A region's size never changes, and
only this process can write to it. Seals (fcntl(2), F_ADD_SEALS) make the kernel enforce both, whatever
the peer does. A region that is lent to a helper of this process can also be written to by the helper,
which then seals it against all other processes. Small buffers are cut from regions of SLAB_BYTES. A
region ends when nothing refers to any of its buffers.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import sys
import threading
import weakref
from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reduction.limits import MIB
from reduction.shortage import check_spare

Buffer = NDArray[np.uint8]

#: Buffers of up to a quarter of this share a region.
SLAB_BYTES = 4 * MIB
#: Maximum regions of a process at a time. Each costs the process two descriptors, and every peer one.
#: Jobs with tensors of the same sizes in every step have a few dozen.
OWN_REGIONS_MAX = 256
#: Buffers begin at multiples of this, a CPU cache line.
_ALIGNMENT = 64
# From linux/fcntl.h; Python's fcntl module does not have the last one before 3.13.
_F_ADD_SEALS = 1033
_SEALS_SIZE = 0x0002 | 0x0004  # SHRINK, GROW
_SEALS_ALL = _SEALS_SIZE | 0x0001 | 0x0010  # SEAL, FUTURE_WRITE


def is_possible() -> bool:
    """Return whether this system supports such memory."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class Region:
    """One anonymous file and its mapping in this process. The descriptor stays open while the object lives."""

    def __init__(self, number: int, descriptor: int, *, is_lent: bool = False) -> None:
        """Map and seal an anonymous file, which this object then owns.

        Args:
            number: never reused by the same `OwnMemory`.
            descriptor: descriptor of the file.
            is_lent: whether another process may still map it for writing, and then seals it.

        Raises:
            OSError: the system does not allow it, or is short of memory or descriptors.
        """
        self.number = number
        self.descriptor = descriptor
        try:
            check_spare(descriptor)
            self.nbytes = os.fstat(descriptor).st_size
            self._mapping = mmap.mmap(descriptor, self.nbytes)
            # Seal after mapping, because no later mapping may be written to, not even by this process.
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS_SIZE if is_lent else _SEALS_ALL)
        except BaseException:
            os.close(self.descriptor)
            raise
        weakref.finalize(self, os.close, self.descriptor)

    def array(self) -> Buffer:
        """Return all bytes of the region."""
        return np.frombuffer(self._mapping, np.uint8)


class OwnMemory:
    """The regions of this process. Use it from any thread.

    Args:
        is_lent: whether they are for a helper of this process, which `adopt`s them. They are then wanted
            immediately.
    """

    def __init__(self, *, is_lent: bool = False) -> None:
        self._is_lent = is_lent
        #: Whether a peer wants to read allocated buffers. Until then they are ordinary memory.
        self.is_wanted = is_lent
        #: Why the system refused to create a region; empty if it did not.
        self.refusal = ""
        #: Incremented when a region has ended.
        self.generation = 0
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()  # the garbage collector may end a region at any line
        #: The regions in address order. The tuple is replaced as a whole, so that it can be read without
        #: the lock.
        self._table: tuple[tuple[int, ...], tuple[weakref.ref[Region], ...]] = ((), ())
        #: The region from which small buffers are cut, and the number of bytes used in it.
        self._slab: Buffer = np.empty(0, np.uint8)
        self._used = 0

    def want(self) -> None:
        """Record that a peer on this host will read from here. Allocations that were refused before are retried."""
        self.is_wanted = is_possible()

    def allocate(self, nbytes: int) -> Buffer:
        """Return writable bytes of undefined content.

        They are in a region if `is_wanted`, the system allows it and OWN_REGIONS_MAX is not reached.
        """
        if self.is_wanted and nbytes and len(self._table[0]) < OWN_REGIONS_MAX:
            try:
                return self._cut(nbytes)
            except OSError as error:
                self.is_wanted = False
                self.refusal = str(error)
        return np.empty(nbytes, np.uint8)

    def adopt(self, descriptor: int) -> Buffer:
        """Return all bytes of a region lent by the process that this one helps, and seal it against other writers.

        The region then owns the descriptor.

        Raises:
            OSError: the system does not allow it, or few descriptors are left.
        """
        return self._add(descriptor)

    def close(self) -> None:
        """Create no more regions. Existing ones end with their buffers."""
        self.is_wanted = False
        self._slab, self._used = np.empty(0, np.uint8), 0

    def suits(self, address: int) -> bool:
        """Return whether an existing buffer is as good as a newly allocated one."""
        return not self.is_wanted or self.find(address) is not None

    def find(self, address: int) -> tuple[Region, int] | None:
        """Return the region that contains an address of this process, and the offset in it, or None."""
        addresses, regions = self._table
        index = bisect_right(addresses, address) - 1
        if index < 0:
            return None
        region = regions[index]()
        offset = address - addresses[index]
        return None if region is None or offset >= region.nbytes else (region, offset)

    def has(self, number: int) -> bool:
        """Return whether a region still exists."""
        return any((region := known()) is not None and region.number == number for known in self._table[1])

    def _cut(self, nbytes: int) -> Buffer:
        with self._lock:
            if nbytes > SLAB_BYTES // 4:
                return self._make(nbytes)
            if self._used + nbytes > len(self._slab):
                self._slab, self._used = self._make(SLAB_BYTES), 0
            buffer = self._slab[self._used : self._used + nbytes]
            self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
            return buffer

    def _make(self, nbytes: int) -> Buffer:
        descriptor = os.memfd_create("reduction", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Holes would be charged to their first reader, so peers reject them.
            os.posix_fallocate(descriptor, 0, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        return self._add(descriptor)

    def _add(self, descriptor: int) -> Buffer:
        region = Region(next(self._numbers), descriptor, is_lent=self._is_lent)
        # A plain numpy array cannot refer to the region, so this subclass does. Every buffer that is cut
        # from this array refers to the array, not to the memory below it.
        whole = region.array().view(_Whole)
        whole.region = region
        address = whole.__array_interface__["data"][0]
        # The slab refers to its region, so a finalizer with a strong reference to this object would keep both alive.
        weakref.finalize(region, _end, weakref.ref(self), address)
        with self._lock:
            addresses, regions = self._table
            index = bisect_right(addresses, address)
            self._table = (
                (*addresses[:index], address, *addresses[index:]),
                (*regions[:index], weakref.ref(region), *regions[index:]),
            )
        return whole

    def _forget(self, address: int) -> None:
        with self._lock:
            addresses, regions = self._table
            index = bisect_right(addresses, address) - 1
            self._table = (
                (*addresses[:index], *addresses[index + 1 :]),
                (*regions[:index], *regions[index + 1 :]),
            )
            self.generation += 1


def _end(memory: weakref.ref[OwnMemory], address: int) -> None:
    if (owner := memory()) is not None:
        owner._forget(address)


class _Whole(np.ndarray[Any, np.dtype[np.uint8]]):
    """All bytes of a region; keeps it alive."""

    region: Region | None = None

    def __array_finalize__(self, parent: object) -> None:
        self.region = getattr(parent, "region", None)

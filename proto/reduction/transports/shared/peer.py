"""Regions of another process on this host, mapped read-only and checked before use.

All memory of a region has been charged to its owner. If this process read a hole, the kernel would allocate memory and
charge it to the reader's cgroup. So a region with holes is rejected, and the seals prevent holes from appearing later.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from contextlib import suppress

from reduction.errors import MalformedFrame
from reduction.limits import REGION_BYTES_MAX, REGIONS_MAX
from reduction.shortage import check_spare, shortage
from reduction.transports.tcp.connection import CannotShare

# From linux/fcntl.h.
_F_GET_SEALS = 1034
_SEALS_SIZE = 0x0002 | 0x0004  # SHRINK, GROW
_SEALS_WRITE = 0x0008 | 0x0010  # WRITE, FUTURE_WRITE: either one also prevents punching holes
#: The unit of st_blocks on every file system (stat(2)).
_BLOCK_BYTES = 512


class PeerMemory:
    """The regions that the peer of one connection has shown.

    Args:
        charge: called with the bytes of a region before it is mapped, when it may raise CannotShare, and with the
            negated number when it is no longer mapped.
    """

    def __init__(self, charge: Callable[[int], None] = lambda nbytes: None) -> None:
        self._charge = charge
        self._regions: dict[int, memoryview] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Map a region, and close its descriptor.

        Raises:
            MalformedFrame: the region could shrink while we read, is not an anonymous file, or exceeds the
                number of regions.
            CannotShare: this process has no descriptor or address space left, or the peer may use no more of it; or
                the region has holes.
        """
        try:
            if number in self._regions or len(self._regions) >= REGIONS_MAX:
                raise MalformedFrame(f"region {number} already exists, or there are more than {REGIONS_MAX}")
            check_spare(descriptor)
            size = _checked_size(descriptor)
            self._charge(size)
            try:
                mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
            except BaseException:
                self._charge(-size)
                raise
        except CannotShare:
            raise
        except OSError as error:
            text = f"region {number} cannot be mapped: "
            if reason := shortage(error):
                raise CannotShare(text + reason) from error
            raise MalformedFrame(f"{text}{error}") from error
        finally:
            os.close(descriptor)
        weakref.finalize(mapping, self._charge, -size).atexit = False
        self._regions[number] = memoryview(mapping)

    def forget(self, number: int) -> None:
        """Release a region. Parts in use stay mapped until they are no longer used."""
        self._regions.pop(number, None)

    def view(self, number: int, offset: int, nbytes: int) -> memoryview:
        """Return bytes of a region, which the peer may change at any time.

        Raises:
            MalformedFrame: the region does not have these bytes.
        """
        region = self._regions.get(number)
        if region is None or offset + nbytes > region.nbytes:
            size = "unknown" if region is None else f"of {region.nbytes} bytes"
            raise MalformedFrame(f"bytes {offset} to {offset + nbytes} of region {number}, which is {size}")
        return region[offset : offset + nbytes]


def _checked_size(descriptor: int) -> int:
    found = os.fstat(descriptor)
    seals = 0
    with suppress(OSError):  # only anonymous files have seals
        seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
    if not stat.S_ISREG(found.st_mode) or seals & _SEALS_SIZE != _SEALS_SIZE or not seals & _SEALS_WRITE:
        raise MalformedFrame("a region that is not sealed against resizing and further writers")
    if not 0 < found.st_size <= REGION_BYTES_MAX:
        raise MalformedFrame(f"a region of {found.st_size} bytes; allowed: 1 to {REGION_BYTES_MAX}")
    # Free the memory allocated past the end, which would be counted as if it filled the holes.
    os.ftruncate(descriptor, found.st_size)
    allocated = os.fstat(descriptor).st_blocks * _BLOCK_BYTES
    if allocated < found.st_size:
        raise CannotShare(
            f"a region of {found.st_size} bytes has {allocated} bytes of memory, and the holes would cost the reader "
            f"the rest: its owner must allocate all of it"
        )
    return found.st_size

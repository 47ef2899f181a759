"""Regions of another process of this host, as this one sees them: to be read only, and checked before use."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from contextlib import suppress

from reduction.errors import MalformedFrame
from reduction.limits import REGION_BYTES_MAX, REGIONS_MAX
from reduction.shortage import check_spare, shortage
from reduction.transports.tcp.connection import CannotShare

# From linux/fcntl.h.
_F_GET_SEALS, _F_SEAL_SHRINK = 1034, 0x0002


class PeerMemory:
    """The regions that the peer of one connection has shown."""

    def __init__(self) -> None:
        self._regions: dict[int, memoryview] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Map a region, and close its descriptor.

        Raises:
            MalformedFrame: it could become smaller while we read, is no anonymous file, or is one too
                many.
            CannotShare: no descriptor or address space is left here.
        """
        try:
            if number in self._regions or len(self._regions) >= REGIONS_MAX:
                raise MalformedFrame(f"region {number} is there already, or more than {REGIONS_MAX} are")
            check_spare(descriptor)
            size = _checked_size(descriptor)
            mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            text = f"region {number} cannot be mapped: "
            if reason := shortage(error):
                raise CannotShare(text + reason) from error
            raise MalformedFrame(f"{text}{error}") from error
        finally:
            os.close(descriptor)
        self._regions[number] = memoryview(mapping)

    def forget(self, number: int) -> None:
        """Let go of a region. What is still in use of it stays mapped until it is not."""
        self._regions.pop(number, None)

    def view(self, number: int, offset: int, nbytes: int) -> memoryview:
        """Return bytes of a region, which the peer may change at any time.

        Raises:
            MalformedFrame: there are no such bytes.
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
    if not stat.S_ISREG(found.st_mode) or not seals & _F_SEAL_SHRINK:
        raise MalformedFrame("a region that is not sealed against shrinking")
    if not 0 < found.st_size <= REGION_BYTES_MAX:
        raise MalformedFrame(f"a region of {found.st_size} bytes, allowed are 1 to {REGION_BYTES_MAX}")
    return found.st_size

"""Keep forked children from holding our connections open.

A DataLoader worker inherits every descriptor of the training process. If that process is then killed, the
reducers do not see its streams end until the child ends too, which took 3.5 s longer in a trial. So the child
drops the descriptors that it inherited. It does not shut them down, because that would end the parent's
connection as well.

A dropped descriptor is replaced by /dev/null instead of being closed. The Python and gRPC objects that own it
were copied with the process, and close its number when they are destroyed. If the number were free, it could
by then belong to a file that the child has opened since.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol

from reduction.transports.grpc_sockets import sockets_to


class DescriptorOwner(Protocol):
    """An object whose descriptors belong to this process alone."""

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """Return the addresses its sockets are connected to, and its other descriptors."""


_owners: weakref.WeakSet[DescriptorOwner] = weakref.WeakSet()


def register(owner: DescriptorOwner) -> None:
    """Make forked children drop the descriptors of this owner."""
    _owners.add(owner)


def _after_in_child() -> None:
    addresses: set[tuple[str, int]] = set()
    numbers: list[int] = []
    for owner in list(_owners):
        peers, descriptors = owner.inherited()
        addresses |= peers
        numbers += descriptors
    _owners.clear()
    if addresses:
        numbers += sockets_to(addresses)  # gRPC does not reveal which it owns
    if numbers:
        _replace(numbers)


def _replace(numbers: list[int]) -> None:
    """Redirect these descriptors to /dev/null."""
    # If no descriptor is left for /dev/null, nothing can be done: the connections stay open while the child lives.
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in numbers:
            os.dup2(null, number, inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_after_in_child)

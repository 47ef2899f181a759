"""Shared memory of processes on one host, so that payloads of the TCP plane need not pass through the kernel."""

from reduction.transports.shared.own import OWN_REGIONS_MAX, OwnMemory, is_possible
from reduction.transports.shared.peer import PeerMemory
from reduction.transports.shared.sharing import Sharing, address_of, copy

__all__ = ["OWN_REGIONS_MAX", "OwnMemory", "PeerMemory", "Sharing", "address_of", "copy", "is_possible"]

"""Memory that processes of one host share, so that payloads of the TCP plane need not pass through the kernel."""

from reduction.transports.shared.own import OwnMemory, Region, is_possible
from reduction.transports.shared.peer import PeerMemory
from reduction.transports.shared.sharing import Sharing, address_of

__all__ = ["OwnMemory", "PeerMemory", "Region", "Sharing", "address_of", "is_possible"]

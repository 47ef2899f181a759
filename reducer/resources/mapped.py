"""The memory of local workers that this process maps, and its accounting by job.

A mapping costs address space, page tables and a descriptor. All mapped memory was allocated by its owners, so its total
does not exceed the machine's memory unless a peer shows the same memory repeatedly.
"""

from __future__ import annotations

import resource

from reduction.limits import MAPPED_REGIONS_MAX
from reduction.transports.tcp import CannotShare

from reducer.core.fair_shares import Account, Shares
from reducer.resources.host_limits import MEMORY_UNKNOWN, machine_memory


class Mapped:
    """Regions of all connections."""

    def __init__(self) -> None:
        self.memory = Shares(min(machine_memory(), default=MEMORY_UNKNOWN))
        self.regions = Shares(MAPPED_REGIONS_MAX)

    def charge(self, account: Account, nbytes: int) -> None:
        """Charge an account for a region before it is mapped; negative bytes are a refund.

        Raises:
            CannotShare: the account may not map that much.
        """
        if nbytes > 0:
            descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if descriptors != resource.RLIM_INFINITY:
                self.regions.limit = min(MAPPED_REGIONS_MAX, descriptors // 2)
            for what, shares, amount in (("bytes", self.memory, nbytes), ("regions", self.regions, 1)):
                if amount > shares.free(account):
                    raise CannotShare(
                        f"job {account.job} may map {shares.free(account)} {what} of its memory beside what it has, "
                        f"not {amount}: {shares.taken} of {shares.limit} are mapped for all jobs"
                    )
        self.memory.take(account, nbytes)
        self.regions.take(account, 1 if nbytes > 0 else -1)

"""The running rank and reducer processes of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from benchmarks.gpu.nccl_ranks import check_gpus
from benchmarks.lab.background import Background, Bursts
from benchmarks.lab.goodput import goodput_mbit
from benchmarks.lab.hosts import Host
from benchmarks.lab.network import Network
from benchmarks.lab.ranks import Ranks
from benchmarks.lab.reducers import Reducers
from benchmarks.lab.traffic import Link, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number and placement of a benchmark's processes."""

    workers: int
    reducers: int
    device: str = "cpu"
    #: Shape of the links of all hosts. None means that all processes share loopback.
    link: Link | None = None
    #: Hosts with slower links, named as in the figure of network.py, and their fraction of the rate.
    #: If there are any, all hosts are told the rates of their links.
    slower: tuple[tuple[str, float], ...] = ()
    #: Processes of each reducer; 0 means as many as it starts by default.
    processes: int = 1
    #: Other traffic on the links of the first two workers.
    background: Bursts | None = None
    #: On GPUs, whether NCCL may use only sockets, and ranks may share a GPU. Shaped links imply it.
    sockets: bool = False
    #: Ranks per host, which share the host's link.
    local: int = 1

    @property
    def name(self) -> str:
        """The name in test ids."""
        place = self.device if self.link is None else self.link.slug
        if self.device != "cpu" and (self.sockets or self.link is not None):
            place += "-shared-gpu"
        place += "".join(f"-{host}x{part:g}" for host, part in self.slower)
        return f"n{self.workers}-k{self.reducers}-{place}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The running processes of a shape."""

    #: The shape, with the congestion control of its links and the goodput measured by iperf3.
    shape: Shape
    ranks: Ranks
    reducers: Reducers
    network: Network | None = None

    def traffic(self) -> Traffic:
        """Return the traffic of all links until now. Loopback is not counted."""
        return Traffic() if self.network is None else self.network.traffic()


@contextmanager
def running(shape: Shape, *, with_goodput: bool = True) -> Iterator[Cluster]:
    """Start the processes of a shape, and end them when the body ends.

    Raises:
        GpuMissing: this machine has too few GPUs, or no NCCL.
        NetworkUnavailable: this machine cannot shape links.
    """
    sockets = shape.sockets or shape.link is not None
    if shape.device == "cuda":
        check_gpus(1 if sockets else shape.workers)
    with ExitStack() as stack:
        network = None
        workers_at: list[Host] = []
        reducers_at: list[Host] = []
        if shape.link is not None:
            slower = dict(shape.slower)
            hosts = shape.workers // shape.local
            network = stack.enter_context(Network(hosts, shape.reducers, shape.link, slower))
            workers_at = [host for host in network.workers for _ in range(shape.local)]
            reducers_at, link = network.reducers, network.link
            if with_goodput:  # iperf3 needs idle links
                other = (reducers_at or workers_at[1:])[0]
                link = replace(link, goodput_mbit=goodput_mbit(workers_at[0], other))
            shape = replace(shape, link=link)
        reducers = stack.enter_context(closing(Reducers(shape.reducers, reducers_at, shape.processes)))
        ranks = Ranks(
            shape.workers, reducers.addresses, device=shape.device, hosts=workers_at, sockets=sockets
        )
        stack.enter_context(closing(ranks))
        if shape.background is not None:
            stack.enter_context(closing(Background(shape.background, workers_at[:2])))
        yield Cluster(shape, ranks, reducers, network)

"""NCCL's log as evidence that a time was measured with a ring over sockets.

The log needs NCCL_DEBUG=INFO. The format is that of NCCL 2.20 to 2.30, see
github.com/NVIDIA/nccl/issues/1267 and /2057.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: Maximum lines of rank 0's log that are kept, without lines of single collectives.
LINES_MAX = 80

_PREFIX = re.compile(r"^.*NCCL (?:INFO|WARN) ")
_VERSION = re.compile(r"NCCL version (\S+)")
_NETWORK = re.compile(r"Using network (.+?)\s*$")
_INTERFACE = re.compile(r"\[\d+\]([^\s:]+):")
_COMPLETE = re.compile(r"rank (\d+) nranks (\d+) .*Init COMPLETE")
_NODES = re.compile(r"nRanks \d+ nNodes (\d+) ")
_CHANNEL = re.compile(r"Channel \d+/(\d+) *:(?: +\d+)+\s*$")
_TRANSPORT = re.compile(r"Channel \S+ : .* via (\S+)")
_CHOICE = re.compile(r"AllReduce: \d+ Bytes *-> Algo (\S+) proto (\S+)")
_VARIABLE = re.compile(r"(NCCL_\w+) set by environment to (.+?)\.?\s*$")
_KEPT = re.compile(r"NET/|network|Channel \d|Connected|comm 0x|NCCL version|WARN|set by environment")
#: Before 2.24 the log had numbers for algorithm and protocol, in the order of nccl.h.
_NUMBERS = {"Algo": {"0": "TREE", "1": "RING"}, "proto": {"0": "LL", "1": "LL128", "2": "SIMPLE"}}


@dataclass(slots=True)
class NcclLog:
    """The contents of the logs of all ranks."""

    version: str = ""
    networks: set[str] = field(default_factory=set)
    interfaces: set[str] = field(default_factory=set)
    #: Rank and number of ranks of each communicator that was complete.
    complete: set[tuple[int, int]] = field(default_factory=set)
    nodes: set[int] = field(default_factory=set)
    channels: set[int] = field(default_factory=set)
    #: Transports that connect neighbours.
    transports: set[str] = field(default_factory=set)
    #: Algorithm and protocol of all-reduces.
    choices: set[tuple[str, str]] = field(default_factory=set)
    #: Environment variables that NCCL has read.
    variables: dict[str, str] = field(default_factory=dict)
    #: Lines of rank 0's log.
    lines: list[str] = field(default_factory=list)

    def problems(self, ranks: int) -> list[str]:
        """Return the evidence against a ring of all ranks over sockets."""
        evidence = []
        if self.complete != {(rank, ranks) for rank in range(ranks)}:
            evidence.append(
                f"the communicators that are complete are {sorted(self.complete)}, not {ranks} ranks"
            )
        if self.networks != {"Socket"}:
            evidence.append(f"the network is {sorted(self.networks)}, not Socket")
        if not self.transports or not all(name.startswith("NET/Socket") for name in self.transports):
            evidence.append(f"neighbours are connected by {sorted(self.transports)}, not NET/Socket")
        if self.choices and self.choices != {("RING", "SIMPLE")}:
            evidence.append(f"all-reduces were {sorted(self.choices)}, not RING, SIMPLE")
        if not self.choices and self.variables.get("NCCL_ALGO") != "Ring":
            evidence.append("nothing says that the algorithm was a ring")
        return evidence

    def summary(self) -> str:
        """Return the contents in one line."""
        choices = {" ".join(choice) for choice in self.choices} or {"algorithm not logged"}
        return (
            f"NCCL {self.version or 'of unknown version'}: {_list(choices)}, network {_list(self.networks)} on "
            f"{_list(self.interfaces)}, {_list(self.channels)} channels by {_list(self.transports)}"
        )

    def json(self) -> dict[str, Any]:
        """Return the contents as JSON."""
        return {
            name: sorted(value) if isinstance(value, set) else value for name, value in asdict(self).items()
        }


def read(logs: Sequence[str]) -> NcclLog:
    """Return the contents of the logs of all ranks, in rank order."""
    log = NcclLog()
    for rank, text in enumerate(logs):
        for line in text.splitlines():
            _take(log, line)
            # Lines of single collectives are omitted, since they repeat.
            if rank == 0 and _KEPT.search(line) and "Bytes ->" not in line and len(log.lines) < LINES_MAX:
                log.lines.append(line)
    return log


def _take(log: NcclLog, line: str) -> None:
    text = _PREFIX.sub("", line)
    if match := _VERSION.search(text):
        log.version = match[1]
    elif match := _NETWORK.match(text):
        log.networks.add(match[1])
    elif text.startswith("NET/Socket : Using "):
        log.interfaces.update(_INTERFACE.findall(text))
    elif match := _COMPLETE.search(text):
        log.complete.add((int(match[1]), int(match[2])))
    elif match := _NODES.search(text):
        log.nodes.add(int(match[1]))
    elif match := _TRANSPORT.match(text):
        log.transports.add(match[1])
    elif match := _CHANNEL.match(text):
        log.channels.add(int(match[1]))
    elif match := _CHOICE.match(text):
        algorithm, protocol = match[1].upper(), match[2].upper()
        numbers = _NUMBERS["Algo"], _NUMBERS["proto"]
        log.choices.add((numbers[0].get(algorithm, algorithm), numbers[1].get(protocol, protocol)))
    elif match := _VARIABLE.match(text):
        log.variables[match[1]] = match[2]


def _list(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values))) or "none"

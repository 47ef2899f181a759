"""What NCCL's log says of what it did: evidence that a figure is that of a ring over sockets.

With NCCL_DEBUG=INFO; formats of 2.20 to 2.30, as in github.com/NVIDIA/nccl/issues/1267 and /2057.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: Of one rank that are kept, without those of single collectives.
LINES_MAX = 80

_PREFIX = re.compile(r"^.*NCCL (?:INFO|WARN) ")
_VERSION = re.compile(r"NCCL version (\S+)")
_NETWORK = re.compile(r"Using network (.+?)\s*$")
_INTERFACE = re.compile(r"\[\d+\]([^\s:]+):")
_COMPLETE = re.compile(r"rank (\d+) nranks (\d+) .*Init COMPLETE")
_NODES = re.compile(r"nRanks \d+ nNodes (\d+) ")
_CHANNEL = re.compile(r"Channel \d+/(\d+) *:(?: +\d+)+\s*$")
_WAY = re.compile(r"Channel \S+ : .* via (\S+)")
_CHOICE = re.compile(r"AllReduce: \d+ Bytes *-> Algo (\S+) proto (\S+)")
_TOLD = re.compile(r"(NCCL_\w+) set by environment to (.+?)\.?\s*$")
_KEPT = re.compile(r"NET/|network|Channel \d|Connected|comm 0x|NCCL version|WARN|set by environment")
#: Before 2.24 the choice was said in numbers (nccl.h's order: tree, ring; LL, LL128, Simple).
_NUMBERS = {"Algo": {"0": "TREE", "1": "RING"}, "proto": {"0": "LL", "1": "LL128", "2": "SIMPLE"}}


@dataclass(slots=True)
class NcclLog:
    """What the logs of all ranks say."""

    version: str = ""
    networks: set[str] = field(default_factory=set)
    interfaces: set[str] = field(default_factory=set)
    #: Of the communicators that were ready: rank of how many.
    complete: set[tuple[int, int]] = field(default_factory=set)
    nodes: set[int] = field(default_factory=set)
    channels: set[int] = field(default_factory=set)
    #: How neighbours are connected.
    ways: set[str] = field(default_factory=set)
    #: Algorithm and protocol of all-reduces.
    choices: set[tuple[str, str]] = field(default_factory=set)
    #: What it was told.
    told: dict[str, str] = field(default_factory=dict)
    #: Of rank 0.
    lines: list[str] = field(default_factory=list)

    def problems(self, ranks: int) -> list[str]:
        """Return what speaks against a ring of so many ranks over sockets."""
        found = []
        if self.complete != {(rank, ranks) for rank in range(ranks)}:
            found.append(
                f"the communicators that are complete are {sorted(self.complete)}, not {ranks} ranks"
            )
        if self.networks != {"Socket"}:
            found.append(f"the network is {sorted(self.networks)}, not Socket")
        if not self.ways or not all(way.startswith("NET/Socket") for way in self.ways):
            found.append(f"neighbours are connected by {sorted(self.ways)}, not NET/Socket")
        if self.choices and self.choices != {("RING", "SIMPLE")}:
            found.append(f"all-reduces were {sorted(self.choices)}, not RING, SIMPLE")
        if not self.choices and self.told.get("NCCL_ALGO") != "Ring":
            found.append("nothing says that the algorithm was a ring")
        return found

    def summary(self) -> str:
        """Return one line."""
        choices = {" ".join(choice) for choice in self.choices} or {"algorithm not logged"}
        return (
            f"NCCL {self.version or 'of unknown version'}: {_list(choices)}, network {_list(self.networks)} on "
            f"{_list(self.interfaces)}, {_list(self.channels)} channels by {_list(self.ways)}"
        )

    def json(self) -> dict[str, Any]:
        """Return it for the file."""
        return {
            name: sorted(value) if isinstance(value, set) else value for name, value in asdict(self).items()
        }


def read(logs: Sequence[str]) -> NcclLog:
    """Return what the texts of all ranks' logs say, rank 0's first."""
    found = NcclLog()
    for rank, text in enumerate(logs):
        for line in text.splitlines():
            _take(found, line)
            # One line of each: those of communicators and of collectives repeat.
            if rank == 0 and _KEPT.search(line) and "Bytes ->" not in line and len(found.lines) < LINES_MAX:
                found.lines.append(line)
    return found


def _take(found: NcclLog, line: str) -> None:
    text = _PREFIX.sub("", line)
    if match := _VERSION.search(text):
        found.version = match[1]
    elif match := _NETWORK.match(text):
        found.networks.add(match[1])
    elif text.startswith("NET/Socket : Using "):
        found.interfaces.update(_INTERFACE.findall(text))
    elif match := _COMPLETE.search(text):
        found.complete.add((int(match[1]), int(match[2])))
    elif match := _NODES.search(text):
        found.nodes.add(int(match[1]))
    elif match := _WAY.match(text):
        found.ways.add(match[1])
    elif match := _CHANNEL.match(text):
        found.channels.add(int(match[1]))
    elif match := _CHOICE.match(text):
        algorithm, protocol = match[1].upper(), match[2].upper()
        numbers = _NUMBERS["Algo"], _NUMBERS["proto"]
        found.choices.add((numbers[0].get(algorithm, algorithm), numbers[1].get(protocol, protocol)))
    elif match := _TOLD.match(text):
        found.told[match[1]] = match[2]


def _list(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values))) or "none"

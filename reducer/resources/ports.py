"""Ports of the processes of one `reducer serve`; process i is counted from 0.

                    gRPC            data           metrics
without an option   free ones       free ones      none
--bind HOST:P       P for i = 0
--data-port P                       P + i
--metrics-port P                                   P for i = 0, which answers for all
--port-range A-B    A + 2i          A + 2i + 1     with --metrics-port 0: B for i = 0
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reduction.errors import ConfigError

LAST_PORT = 65535
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one process. 0 means any free port."""

    grpc: int
    data: int
    #: None without metrics, and for processes after the first.
    metrics: int | None


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from `first` to `last`, inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @classmethod
    def of(cls, text: str) -> PortRange:
        """Return the range of a string such as 2222-2289.

        Raises:
            ConfigError: the string is not a range.
        """
        match = _RANGE.fullmatch(text)
        if match is None or not 0 < int(match[1]) <= int(match[2]) <= LAST_PORT:
            raise ConfigError(
                f"--port-range {text}: write FIRST-LAST, such as 50051-50066, with ports of 1 to {LAST_PORT}"
            )
        return cls(int(match[1]), int(match[2]))

    def ports(self, number: int, metrics_port: int | None) -> Ports:
        """Return the ports of one process; `metrics_port` is the option --metrics-port."""
        grpc = self.first + 2 * number
        metrics = (self.last if metrics_port == 0 else metrics_port) if number == 0 else None
        return Ports(grpc, grpc + 1, metrics)

    def check(self, processes: int, metrics_port: int | None) -> None:
        """Check that the range has room for all processes.

        Raises:
            ConfigError: the range is too small, or includes the port of --metrics-port among the others.
        """
        of_metrics = int(metrics_port == 0)
        needed, there = 2 * processes + of_metrics, self.last - self.first + 1
        if needed > there:
            fewer = (there - of_metrics) // 2
            hint = f", or set --processes to {fewer} or less" if fewer else ""
            raise ConfigError(
                f"--port-range {self}: {processes} processes take {needed} ports, and it has {there}: "
                f"let it have {needed}{hint}"
            )
        if metrics_port and self.first <= metrics_port < self.first + needed:
            raise ConfigError(
                f"--metrics-port {metrics_port}: with --port-range {self} the ports from {self.first} to "
                f"{self.first + needed - 1} are for gRPC and data: take another, or 0 for the last one of the range"
            )

"""The rows of results/latest.json for figures. report.py defines the format."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

#: Version of the file that this module reads.
FORMAT = 2


class FormatUnknown(ValueError):
    """A file has another format than this version reads. The message says why."""


class Quartiles(NamedTuple):
    """The quartiles of one quantity over the turns, or over the pairs of turns."""

    low: float
    median: float
    high: float


def queue_ms(network: Mapping[str, Any]) -> float:
    """Return the milliseconds that a packet waits in a full queue of a row's links.

    Rows from before its length was recorded have queues of at least a burst.
    """
    rate_mbit = network["rate_mbit"]
    least_bytes = max(rate_mbit * network["latency_ms"] * 125, network["burst_bytes"])
    return float(network.get("queue_bytes", least_bytes) * 8e-3 / rate_mbit)


class Network(NamedTuple):
    """The shape of all links of a row."""

    rate_mbit: float
    queue_ms: float
    burst_bytes: int

    @property
    def name(self) -> str:
        """The name that titles have."""
        burst = f"{self.burst_bytes / 1024:g} KiB bursts"
        return f"{self.rate_mbit:g} Mbit/s links, {self.queue_ms:.3g} ms queues, {burst}"


@dataclass(frozen=True, slots=True)
class Contender:
    """The measurement of one contender in a row."""

    #: Seconds per iteration of the turns.
    turn_s: Quartiles
    #: Bandwidth in GB/s = 1e9 bytes/s: the size of the tensor by the time of a turn.
    algbw_gb_s: Quartiles
    #: Ring's time / own time; None for the ring itself.
    ratio: Quartiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One comparison."""

    what: str
    size_bytes: int
    workers: int
    reducers: int
    ring: str
    device: str
    #: None for loopback.
    network: Network | None
    #: Goodput of iperf3 on such a link; None if it was not measured.
    goodput_mbit: float | None
    contenders: dict[str, Contender]

    @property
    def shape(self) -> str:
        """Workers and reducers, for titles."""
        on = "" if self.device == "cpu" else f", {self.device}"
        return f"n={self.workers}, k={self.reducers}{on}"

    @property
    def place(self) -> str:
        """Where the row was measured, for titles."""
        return "loopback" if self.network is None else self.network.name


def load(path: Path) -> dict[str, Any]:
    """Return the document of a file.

    Raises:
        FormatUnknown: the file holds no JSON object.
        OSError: the file cannot be read.
    """
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise FormatUnknown(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise FormatUnknown(f"{path} holds no object")
    return document


def records(document: dict[str, Any]) -> list[Record]:
    """Return the rows of a document.

    Raises:
        FormatUnknown: the document has another format than FORMAT.
    """
    if document.get("format") != FORMAT:
        raise FormatUnknown(f"the format is {document.get('format')!r}, this version reads {FORMAT}")
    return [_record(row) for row in document["rows"]]


def _record(row: dict[str, Any]) -> Record:
    link = None if row["network"] == "loopback" else row["network"]
    names = ("what", "size_bytes", "workers", "reducers", "ring", "device")
    return Record(
        **{name: row[name] for name in names},
        network=None if link is None else Network(link["rate_mbit"], queue_ms(link), link["burst_bytes"]),
        goodput_mbit=None if link is None else link["goodput_mbit"],
        contenders={name: _contender(plain, row["size_bytes"]) for name, plain in row["contenders"].items()},
    )


def _contender(plain: dict[str, Any], size_bytes: int) -> Contender:
    ratio = plain["ratio"]
    return Contender(
        turn_s=quartiles(plain["turns"]),
        algbw_gb_s=quartiles([size_bytes / turn / 1e9 for turn in plain["turns"]]),
        ratio=None if ratio is None else Quartiles(*(ratio[f"{name}"] for name in _RATIO)),
    )


_RATIO = ("low_quartile", "median", "high_quartile")


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of one or more values."""
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))

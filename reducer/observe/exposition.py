"""Prometheus text of one process, and of all processes of one `reducer serve`.

Each process writes its own series, with its number as the label `process`. The first process
concatenates the texts without parsing them, which costs next to nothing. The counters of the processes
are not added up here. When one of them restarted, the sum would fall, and Prometheus would take that
for a restart of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_HEAD = "# HELP "
_UP = (
    f"{_HEAD}reducer_process_up 1 if a process has answered with its metrics\n# TYPE reducer_process_up gauge"
)


class Exposition:
    """The metrics of this process, whose number is the label `process`."""

    def __init__(self, collector: Collector, number: int) -> None:
        own = CollectorRegistry()
        own.register(collector)
        for kind in (ProcessCollector, GCCollector, PlatformCollector):
            kind(registry=own)
        self._registry = CollectorRegistry()
        self._registry.register(_Labelled(own, str(number)))

    def text(self) -> str:
        """Return the current values. Call it on any thread except the loop's."""
        return generate_latest(self._registry).decode()


class _Labelled(Collector):
    """Collector that adds the label `process` to all series of another registry."""

    def __init__(self, registry: CollectorRegistry, process: str) -> None:
        self._registry = registry
        self._process = process

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [
                sample._replace(labels={**sample.labels, "process": self._process})
                for sample in metric.samples
            ]
            yield metric


def merge(texts: Iterable[str]) -> str:
    """Merge expositions so that each metric is in one place, as the format requires."""
    families: dict[str, list[str]] = {}
    for text in texts:
        # Line breaks in label values are escaped, so a line with this beginning is a head.
        for family in ("\n" + text).split("\n" + _HEAD)[1:]:
            help_line, type_line, *samples = family.rstrip("\n").split("\n")
            families.setdefault(f"{_HEAD}{help_line}\n{type_line}", []).extend(samples)
    return "".join("\n".join((head, *samples, "")) for head, samples in families.items())


def of_all(texts: Sequence[str | None]) -> str:
    """Return the exposition of all processes, given in the order of their numbers; None stands for no answer."""
    up = [
        f'reducer_process_up{{process="{number}"}} {int(bool(text))}.0' for number, text in enumerate(texts)
    ]
    return merge([*filter(None, texts), "\n".join((_UP, *up, ""))])

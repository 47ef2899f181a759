"""Picture of a part of a trace as a self-contained SVG file that every browser shows.

It draws the events of chrome.py: for each rank its collectives, for each reducer its sums, and for each thread of a
profiler its operators. Overlapping items get separate rows. Each bar has a tooltip.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree as xml

from reduction.errors import ConfigError
from reduction.text import printable

Event = dict[str, Any]
#: Number of collectives of the first rank, from the middle, that are shown without a given time range.
SHOWN = 6
#: Kinds of bars and their colours, most of them from the palette of Okabe and Ito, "Color Universal Design", 2008.
KINDS = {
    "handed over": "#CC79A7",
    "waiting to push": "#E69F00",
    "pushing": "#0072B2",
    "waiting for results": "#56B4E9",
    "delivered": "#009E73",
    "not done": "#D55E00",
    "waiting for ranks": "#F0E442",
    "summing": "#9467BD",
    "torch's operators": "#777777",
}
_STYLE = """
text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
.ground { fill: #ffffff } .axis { stroke: #8b949e; stroke-width: 0.5 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ground { fill: #1b2129 } }
"""
# Pixels.
_LEFT, _WIDE, _ROW, _TOP, _BELOW = 230, 900, 17, 34, 30


class Bar(NamedTuple):
    """A bar of one kind, with times in microseconds of the trace."""

    start: float
    end: float
    kind: str
    text: str


#: An item on a row: a collective, a sum or an operator.
Item = list[Bar]


def picture(events: Sequence[Event], since: float | None = None, until: float | None = None) -> str:
    """Return a picture of the events of a trace.

    Args:
        events: the events of `chrome.document`, with or without profiles.
        since: start of the picture, in seconds of the trace.
        until: end of the picture. Without both it shows the middle collectives; without one, a time of that length.

    Raises:
        ConfigError: there is nothing to draw.
    """
    titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    by_pid: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        by_pid[event["pid"]].append(event)
    groups = [(printable(titles[pid]), items) for pid in titles for items in _groups(by_pid[pid])]
    begin, end = _middle([items for _, items in groups])
    wide = end - begin
    if since is not None:
        begin = 1e6 * since
        end = begin + wide
    if until is not None:
        end = 1e6 * until
        begin = end - wide if since is None else begin
    rows: list[tuple[str, list[Item]]] = []
    for title, items in groups:
        seen = [item for item in items if item[0].start < end and item[-1].end > begin]
        rows += [(title if not number else "", row) for number, row in enumerate(_packed(seen))]
    if not rows:
        bars = (bar for _, items in groups for item in items for bar in item)
        last = max((bar.end for bar in bars), default=0.0)
        raise ConfigError(
            f"nothing happens from {begin / 1e6:g} s to {end / 1e6:g} s: the trace ends at {last / 1e6:g} s"
        )
    return _drawn(rows, begin, end)


def _groups(events: Sequence[Event]) -> Iterator[list[Item]]:
    """Yield the collectives of a rank or the sums of a reducer, or the operators of each thread of a profiler."""
    if any(event.get("cat") == "reduction" for event in events):
        yield _collectives(events)
        return
    threads: dict[Any, list[Item]] = defaultdict(list)
    for event in sorted(_operators(events), key=lambda event: event["ts"]):
        items = threads[event["tid"]]
        # Keep only the outermost operators.
        if not items or event["ts"] >= items[-1][0].end:
            items.append([Bar(event["ts"], event["ts"] + event["dur"], "torch's operators", event["name"])])
    yield from threads.values()


def _operators(events: Iterable[Event]) -> Iterator[Event]:
    return (event for event in events if event["ph"] == "X" and event.get("cat") == "cpu_op")


def _collectives(events: Iterable[Event]) -> list[Item]:
    begun: dict[tuple[str, str], float] = {}
    names: dict[str, str] = {}
    items: dict[str, Item] = {}
    for event in events:
        if event.get("tid") != 0 or "id" not in event:
            continue
        name, of, at = event["name"], event["id"], event["ts"]
        if event["ph"] == "b":
            # The whole slice comes before its parts.
            names.setdefault(of, name)
            items.setdefault(of, [])
            begun[of, name] = at
        elif name in KINDS:
            items[of].append(Bar(begun[of, name], at, name, names[of]))
        elif not items[of] or items[of][-1].kind not in ("delivered", "summing"):
            # This is the end of a whole slice whose last part is missing.
            items[of].append(Bar(at, math.inf, "not done", names[of]))
    return sorted(items.values())


def _middle(groups: Sequence[Sequence[Item]]) -> tuple[float, float]:
    """Return the time range, with a margin, in which all ranks do the first rank's middle collectives."""
    items = groups[0] if groups else ()
    first = max(0, (len(items) - SHOWN) // 2)
    names = {item[0].text for item in items[first : first + SHOWN]}
    bars = [bar for items in groups for item in items if item[0].text in names for bar in item]
    begin = min((bar.start for bar in bars), default=0.0)
    # Open bars have no end.
    end = max((bar.end if bar.end < math.inf else bar.start + 1.0 for bar in bars), default=1.0)
    margin = 0.04 * (end - begin)
    return begin - margin, end + margin


def _packed(items: Iterable[Item]) -> list[list[Item]]:
    """Return rows in which nothing overlaps."""
    rows: list[list[Item]] = []
    for item in items:
        free = next((row for row in rows if row[-1][-1].end <= item[0].start), None)
        if free is None:
            rows.append([item])
        else:
            free.append(item)
    return rows


def _drawn(rows: Sequence[tuple[str, list[Item]]], begin: float, end: float) -> str:
    def x(at: float) -> float:
        return round(_LEFT + _WIDE * (min(max(at, begin), end) - begin) / (end - begin), 2)

    bottom = _TOP + _ROW * len(rows)
    size = {"width": _LEFT + _WIDE + 20, "height": bottom + _BELOW}
    svg = xml.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {size['width']} {size['height']}"
    )
    xml.SubElement(svg, "style").text = _STYLE
    _add(svg, "rect", {"class": "ground", **size})
    for at, label in _ticks(begin, end):
        _add(svg, "line", {"class": "axis", "x1": x(at), "x2": x(at), "y1": _TOP - 4, "y2": bottom + 4})
        _add(svg, "text", {"x": x(at), "y": bottom + 18, "text-anchor": "middle"}, label)
    kinds = set()
    for number, (title, row) in enumerate(rows):
        y = _TOP + _ROW * number
        _add(svg, "text", {"x": _LEFT - 8, "y": y + 12, "text-anchor": "end"}, _short(title))
        for bar in (bar for item in row for bar in item if bar.start < end and bar.end > begin):
            kinds.add(bar.kind)
            box = {"x": x(bar.start), "y": y + 2, "width": round(x(bar.end) - x(bar.start), 2)}
            drawn = _add(svg, "rect", {**box, "height": _ROW - 4, "fill": KINDS[bar.kind]})
            took = "" if bar.end == math.inf else f", {(bar.end - bar.start) / 1e3:.3f} ms"
            _add(drawn, "title", {}, f"{printable(bar.text)}: {bar.kind}{took}")
    for number, kind in enumerate(kind for kind in KINDS if kind in kinds):
        _add(svg, "rect", {"x": 8 + 140 * number, "y": 8, "width": 10, "height": 10, "fill": KINDS[kind]})
        _add(svg, "text", {"x": 22 + 140 * number, "y": 17}, kind)
    return xml.tostring(svg, encoding="unicode")


def _add(
    parent: xml.Element, name: str, attributes: dict[str, object], text: str | None = None
) -> xml.Element:
    made = xml.SubElement(parent, name, {key: str(value) for key, value in attributes.items()})
    made.text = text
    return made


def _short(title: str) -> str:
    return title if len(title) <= 38 else f"{title[:18]}…{title[-19:]}"


def _ticks(begin: float, end: float) -> Iterator[tuple[float, str]]:
    """Yield about eight round times, with their labels in seconds."""
    least = (end - begin) / 8
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)
    decimals = max(0, 6 - math.floor(math.log10(step) + 1e-9))
    for number in range(math.ceil(begin / step), math.floor(end / step) + 1):
        yield number * step, f"{number * step / 1e6:.{decimals}f} s"

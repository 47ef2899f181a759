"""The results in docs/measured/, and their numbers as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("measured")


def load(name: str) -> dict[str, Any]:
    """Return a result."""
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def names() -> list[str]:
    """Return the names of all results."""
    paths = (path.relative_to(RESULTS).with_suffix("") for path in RESULTS.glob("*/*.json"))
    return sorted(path.as_posix() for path in paths)


def number(value: float | None, digits: str = ".2f", factor: float = 1.0, unit: str = "") -> str:
    """Return a number as text; nothing if it was not measured."""
    return "" if value is None else f"{value * factor:{digits}}{unit}"


def figures(value: float | None, factor: float = 1.0) -> str:
    """Return two digits, or all before the point."""
    if value is None:
        return ""
    scaled = value * factor
    return f"{scaled:.0f}" if scaled >= 9.95 else f"{scaled:.1f}"


def spread(value: Sequence[float | None] | dict[str, float | None] | None, digits: str = ".2f") -> str:
    """Return median and quartiles."""
    if value is None:
        return ""
    names = ("low_quartile", "median", "high_quartile")
    low, median, high = [value[name] for name in names] if isinstance(value, dict) else value
    shown = number(median, digits)
    return shown if low is None or high is None else f"{shown} ({low:{digits}}-{high:{digits}})"

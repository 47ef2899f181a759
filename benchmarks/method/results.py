"""The JSON file of a tool: the command, the machine, and the rows of its table as numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import environment

#: Default folder for results; git ignores it.
RESULTS = Path(__file__).parents[1] / "results"
#: Version of the file, incremented when a field changes its meaning.
FORMAT = 1


def write(
    path: Path,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    described: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    """Write the results of a tool, and more fields. docs/measured.py makes tables from the rows."""
    document = {
        "format": FORMAT,
        "environment": described or environment.describe(),
        "settings": dict(settings),
        "rows": [dict(row) for row in rows],
    } | more
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")

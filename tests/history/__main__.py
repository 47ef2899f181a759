"""Judges a history written by `benchmarks.chaos` or `benchmarks.elastic`: `python -m tests.history FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from history import checker, elastic


def main() -> int:
    """Print one line per violation, and how much was judged; return 1 if there are any, or if there are no results."""
    history = checker.read(Path(sys.argv[1]))
    is_elastic = any(record["what"] == "joined" for record in history)
    found = (elastic if is_elastic else checker).violations(history)
    results = sum(record["what"] == "result" for record in history)
    faults = sum(record["what"] in ("fault", "killed") for record in history)
    print("\n".join([*found, f"{results} results, {faults} faults, {len(found)} violations"]))
    return 1 if found or not results else 0


if __name__ == "__main__":
    sys.exit(main())

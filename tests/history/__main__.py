"""Judges the history that `python -m benchmarks.chaos --history FILE` writes: `python -m tests.history FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from history.checker import read, violations


def main() -> int:
    """Print what is wrong, a line each, and how much was judged; return 1 if anything is."""
    history = read(Path(sys.argv[1]))
    found = violations(history)
    results = sum(record["what"] == "result" for record in history)
    faults = sum(record["what"] == "fault" for record in history)
    print("\n".join([*found, f"{results} results, {faults} faults, {len(found)} violations"]))
    return 1 if found or not results else 0


if __name__ == "__main__":
    sys.exit(main())

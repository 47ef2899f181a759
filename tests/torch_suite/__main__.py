"""Run torch's own tests on the backend "reduction" and print a table beside Gloo's: `make test-torch`.

A reducer is started for them. The exit code is 1 if a test fails that passes on Gloo and is not explained in
`EXPLAINED`. `one_run.py` describes each way of running and the skipped tests.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "proto"), str(ROOT / "tests")]

from support.processes.reducers import Reducer  # noqa: E402

#: Tests that pass on Gloo and cannot pass here.
EXPLAINED = {
    "test_get_backend": "asks for the name gloo, which was turned into another",
    "test_monitored_barrier_gloo": "torch refuses monitored_barrier by name for every backend but gloo",
    "test_monitored_barrier_gloo_subgroup": "torch refuses monitored_barrier by name for every backend but gloo",
    "test_ddp_profiling_torch_profiler": "looks for events that are called gloo:all_reduce",
}
#: Time limit of one run of all tests, in seconds.
RUN_S = 1500


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="as-is on 3 ranks only, without Gloo")
    parser.add_argument("--ranks", type=int, nargs="+", default=[3], help="world sizes")
    parser.add_argument(
        "--pattern", default=".", help="only tests with this regular expression in their name"
    )
    options = parser.parse_args()
    rows, is_good = [], True
    with tempfile.TemporaryDirectory() as folder:
        reducer = Reducer(Path(folder))
        try:
            for size in options.ranks:
                for way in ("as-is",) if options.quick else ("as-is", "on-cpu"):
                    ours = _run(way, "reduction", size, options.pattern, reducer.address)
                    gloo = {} if options.quick else _run(way, "gloo", size, options.pattern, reducer.address)
                    rows.append(_row(way, size, ours, gloo))
                    is_good = _explain(ours, gloo) and is_good
        finally:
            reducer.kill()
    print("\n| ranks | way | Gloo | reduction |\n|---|---|---|---|", *rows, sep="\n")
    return 0 if is_good else 1


def _run(way: str, backend: str, size: int, pattern: str, address: str) -> dict[str, Any]:
    """Run the tests in a separate process, and return their results by name."""
    print(f"{way}, {backend}, {size} ranks", flush=True)
    environment = os.environ | {
        "REDUCTION_REDUCERS": address,
        "REDUCTION_LOG": "error",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "results.json"), Path(folder, "log")
        command = [
            sys.executable,
            "-m",
            "tests.torch_suite.one_run",
            way,
            backend,
            str(size),
            pattern,
            str(out),
        ]
        with log.open("wb") as file:
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=RUN_S
            )
        if not out.exists():
            print(log.read_text(errors="replace")[-4000:])
            raise SystemExit("the tests did not run")
        results: dict[str, Any] = json.loads(out.read_text())
        return results


def _row(way: str, size: int, ours: dict[str, Any], gloo: dict[str, Any]) -> str:
    both = sum(_passes(ours, name) and _passes(gloo, name) for name in ours)
    return f"| {size} | {way} | {_counts(gloo)} | {_counts(ours)}{f'; {both} in both' if gloo else ''} |"


def _counts(results: dict[str, Any]) -> str:
    counts = collections.Counter(outcome for outcome, _, _ in results.values())
    words = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    return ", ".join(f"{counts[key]} {word}" for key, word in words.items()) if results else "not run"


def _explain(ours: dict[str, Any], gloo: dict[str, Any]) -> bool:
    """Print the tests that pass only on Gloo; return whether all are explained, and nothing fails here alone."""
    is_good = True
    for name, (outcome, _, reason) in ours.items():
        if outcome != "fail" or (gloo and not _passes(gloo, name)):
            continue
        explanation = EXPLAINED.get(name)
        is_good = is_good and explanation is not None
        print(f"  {name}: {explanation or 'FAILED: ' + reason[-1500:]}")
    return is_good


def _passes(results: dict[str, Any], name: str) -> bool:
    return name in results and results[name][0] == "pass"


if __name__ == "__main__":
    sys.exit(main())

"""Simulates jobs under faults: `python -m tests.simulation --seconds 60`, or `--seed 7` for one run.

Prints what is wrong with a run, its seed, and the shortest list of faults that still reproduces it. The seed
determines everything else in a run.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "proto"), str(ROOT / "tests")]

from simulation import faults, world  # noqa: E402
from simulation.elastic import faults as elastic_faults  # noqa: E402
from simulation.elastic import world as elastic_world  # noqa: E402
from simulation.shorter import shortest  # noqa: E402
from simulation.world import Outcome  # noqa: E402


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="only this run")
    parser.add_argument(
        "--first", type=int, help="seed of the first run; by default one that the clock gives"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long new runs are begun")
    parser.add_argument("--faults", default="", help="comma-separated; an unknown one lists them")
    parser.add_argument("--elastic", action="store_true", help="simulate elastic jobs")
    parser.add_argument("--dense", action="store_true", help="hundreds of faults in each run, and long jobs")
    parser.add_argument("--log", action="store_true", help="with --seed: show the run's history")
    arguments = parser.parse_args()
    known = faults.KINDS
    simulate: Callable[..., Outcome] = partial(world.simulate, is_dense=arguments.dense)
    if arguments.elastic:
        if arguments.dense:
            parser.error("--dense is not for --elastic")
        known, simulate = elastic_faults.KINDS, elastic_world.simulate
    kinds = [kind for kind in arguments.faults.split(",") if kind]
    if unknown := sorted(set(kinds) - known.keys()):
        parser.error(f"--faults {','.join(unknown)}: known are {', '.join(known)}")
    options = "".join(f" --{name}" for name in ("elastic", "dense") if getattr(arguments, name))
    if kinds:
        options += f" --faults {','.join(kinds)!r}"
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        outcome = simulate(arguments.seed, kinds=kinds)
        if arguments.log:
            for record in outcome.history:
                print(
                    {key: len(value) if isinstance(value, bytes) else value for key, value in record.items()}
                )
        return report(outcome, simulate, options)
    seed = int(time.time() * 1000) if arguments.first is None else arguments.first
    begun, runs, simulated, happened, bad = time.monotonic(), 0, 0.0, Counter[str](), 0
    print(f"first seed {seed}", flush=True)
    while time.monotonic() < begun + arguments.seconds:
        outcome = simulate(seed, kinds=kinds)
        runs, simulated = runs + 1, simulated + outcome.seconds
        happened += outcome.happened
        bad += report(outcome, simulate, options)
        seed += 1
    taken = time.monotonic() - begun
    print(
        f"{runs} runs, {simulated / 3600:.2f} simulated hours in {taken:.0f} s ({simulated / taken:.0f} times as fast)"
    )
    print(
        f"{happened.total()} faults: "
        + ", ".join(f"{kind} {count}" for kind, count in sorted(happened.items()))
    )
    print(f"{bad} runs were wrong")
    return min(bad, 1)


def report(outcome: Outcome, simulate: Callable[..., Outcome], options: str) -> int:
    """Print what is wrong with a run; return 1 if anything is."""
    if not outcome.violations:
        return 0
    print(f"seed {outcome.seed} is wrong, {len(outcome.faults)} faults:")
    for line in outcome.violations[:5]:
        print(f"  {line}")
    for fault in shortest(outcome, simulate):
        print(f"    {tuple(fault)}")
    print(f"  python -m tests.simulation --seed {outcome.seed}{options}", flush=True)
    return 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of strings must be the same in every run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main())

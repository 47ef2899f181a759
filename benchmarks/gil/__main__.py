"""All-reduces beside a training loop that computes in Python: how much each slows the other.

    python -m benchmarks.gil                    # two workers, one reducer, 16 MiB; about 2 minutes
    python -m benchmarks.gil --workers 4 --reducers 2 --size-mib 64

Our data path on the worker needs Python's GIL now and then, Gloo's does not. The main thread of
every rank does three things in turn: it computes with nothing in flight, it computes with
all-reduces in flight (over each transport and over Gloo's ring), and it waits for such all-reduces
without computing. All sums are checked. Prints a table, whose columns README.md defines, and writes
results/gil.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gil.load import BusyMain, Turn
from benchmarks.gil.rows import HEAD, Measured, Rounds, cells, idle_cells, row
from benchmarks.lab import environment
from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import OURS
from benchmarks.lab.traffic import Link
from benchmarks.method.paired import LEAD_S
from benchmarks.method.table import markdown

RESULTS = Path(__file__).parents[1] / "results"

#: Version of the JSON; raised when a field changes its meaning.
FORMAT = 1
CONTENDERS = ("tcp", "tcp-io-process", "grpc", "ring")

#: Wanted seconds of a turn.
TURN_S = 1.0
#: Least and most collectives of a turn. Each has memory of its own.
COUNT_MIN, COUNT_MAX = 2, 16
#: Number of first rounds that are checked, but not counted.
WARMUP_ROUNDS = 1
#: Seconds after which no further round begins, once there are ROUNDS_MIN.
BUDGET_S = 150.0
ROUNDS_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the command line."""

    workers: int
    reducers: int
    size_bytes: int
    #: Most collectives in flight at once.
    depth: int
    rounds: int
    #: Seconds for sys.setswitchinterval in the ranks; None for Python's default.
    switch_s: float | None
    #: Names of lab.ranks.OURS, or "ring".
    contenders: tuple[str, ...] = CONTENDERS
    #: Mbit/s of each host's link, each way; None: all processes share loopback.
    rate_mbit: float | None = None
    #: Whether main threads sleep with the GIL instead of computing.
    is_asleep: bool = False


def measure(cluster: Cluster, settings: Settings) -> tuple[list[list[Turn]], dict[str, Measured]]:
    """Return the turns with nothing in flight, and those of each contender."""
    ranks = cluster.ranks
    numel = settings.size_bytes // 4
    ranks.load(BusyMain, numel, COUNT_MAX, settings.depth, settings.switch_s, settings.is_asleep)
    # The number of collectives of a turn follows from the previous turn, since contenders differ a
    # hundredfold.
    names = settings.contenders
    counts = {(name, spins): COUNT_MIN for name in names for spins in (True, False)}

    def fly(name: str, spins: bool) -> list[Turn]:
        count = counts[name, spins]
        ranks.call("take", count)
        ranks.call("prepare")
        turns: list[Turn] = ranks.call("fly", name, spins, time.perf_counter() + LEAD_S)
        ranks.call("verify")
        suits = round(count * TURN_S / turns[0].seconds)
        counts[name, spins] = min(max(suits, COUNT_MIN), COUNT_MAX)
        return turns

    idle: list[list[Turn]] = []
    measured = {name: Measured() for name in names}
    deadline = time.monotonic() + BUDGET_S
    for round_ in range(WARMUP_ROUNDS + settings.rounds):
        if round_ == WARMUP_ROUNDS:
            idle.clear()
            measured = {name: Measured() for name in names}
        elif round_ >= WARMUP_ROUNDS + ROUNDS_MIN and time.monotonic() > deadline:
            break
        idle.append(ranks.call("idle", time.perf_counter() + LEAD_S, TURN_S))
        for name, kept in measured.items():
            kept.spinning.append(fly(name, True))
            kept.waiting.append(fly(name, False))
    return idle, measured


def main() -> None:
    settings, path = _arguments()
    # Slow ranks are intended here. Warnings about them would hide the table.
    os.environ.setdefault("REDUCTION_STALL_WARN_S", "60")
    link = None if settings.rate_mbit is None else Link(rate_mbit=settings.rate_mbit)
    shape = Shape(workers=settings.workers, reducers=settings.reducers, link=link)
    with ending_well("gil"), running(shape, with_goodput=False) as cluster:
        idle, measured = measure(cluster, settings)
    rows = [row(name, idle, kept) for name, kept in measured.items()]
    described = environment.describe()
    print(environment.summary(described))
    print(
        f"{settings.workers} workers, {settings.reducers} reducers, all-reduces of {settings.size_bytes >> 20} MiB, "
        f"{settings.depth} in flight, {len(idle)} rounds; all checked\n"
    )
    print("\n".join(markdown(HEAD, [idle_cells(idle), *map(cells, rows)])))
    document = {
        "format": FORMAT,
        "environment": described,
        "settings": asdict(settings),
        "rows": rows,
        "idle": _plain(idle),
        "turns": {
            name: {"spinning": _plain(kept.spinning), "waiting": _plain(kept.waiting)}
            for name, kept in measured.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _plain(rounds: Rounds) -> list[list[dict[str, Any]]]:
    return [[asdict(turn) for turn in turns] for turns in rounds]


def _arguments() -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gil", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--reducers", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--size-mib", type=int, default=16, help="of a tensor of float32, MiB (%(default)s)")
    parser.add_argument("--depth", type=int, default=4, help="in flight at once (%(default)s)")
    parser.add_argument(
        "--switch-ms", type=float, help="sys.setswitchinterval of the ranks; Python's own is 5"
    )
    parser.add_argument(
        "--contenders",
        default=",".join(CONTENDERS),
        help=f"of {', '.join((*OURS, 'ring'))} (%(default)s)",
    )
    parser.add_argument("--rate", type=float, help="Mbit/s of every link, each way, as root; else loopback")
    parser.add_argument(
        "--asleep",
        action="store_true",
        help="main threads keep the GIL asleep, for machines with fewer cores than processes",
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each that count (%(default)s)")
    parser.add_argument("--json", type=Path, default=RESULTS / "gil.json", help="where to write every turn")
    given = parser.parse_args()
    if min(given.workers, given.reducers, given.size_mib, given.depth) < 1 or given.rounds < 2:
        parser.error("all numbers must be at least 1, --rounds at least 2")
    contenders = tuple(given.contenders.split(","))
    if unknown := [name for name in contenders if name not in (*OURS, "ring")]:
        parser.error(f"unknown contenders: {', '.join(unknown)}")
    settings = Settings(
        workers=given.workers,
        reducers=given.reducers,
        size_bytes=given.size_mib << 20,
        depth=given.depth,
        rounds=given.rounds,
        switch_s=None if given.switch_ms is None else given.switch_ms / 1e3,
        contenders=contenders,
        rate_mbit=given.rate,
        is_asleep=given.asleep,
    )
    return settings, given.json


if __name__ == "__main__":
    main()

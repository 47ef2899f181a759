"""The cost for the other workers when a worker joins, with a large state.

    python -m benchmarks.elastic.joining                 3 workers, 100 MB of state, 5 newcomers one after another

Each newcomer leaves again. The tool shows the others' median step without a newcomer, and the steps between a
newcomer's first request and its first step: the longest one, and the time that all of them lost against the median.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarks.elastic.course import (
    LOAD,
    PATIENCE_S,
    Lines,
    environment,
    lines_of,
    log_of,
    of_job,
    start,
    wait_until,
)
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import RanksFailed
from benchmarks.lab.reducers import Reducers
from benchmarks.method.experiment import Line, settings_of
from benchmarks.method.results import write


def main() -> None:
    line = Line("elastic.joining", __doc__, workers=3, reducers=2, json=None)
    line.add_argument("--megabytes", type=int, default=100, help="of weights and moments (%(default)s)")
    line.add_argument("--joins", type=int, default=5)
    line.add_argument("--pause", type=float, default=0.2, help="of each step, for what it computes")
    options = line.parse_args()
    with ending_well("joining"), tempfile.TemporaryDirectory() as name:
        rounds = measure(Path(name), options)
    longest = [one["longest_s"] for one in rounds]
    lost = [one["lost_s"] for one in rounds]
    print(
        f"median step {statistics.median(one['step_s'] for one in rounds):.3f} s; while a worker came: longest step "
        f"{statistics.median(longest):.3f} s (most {max(longest):.3f}), time lost {statistics.median(lost):.3f} s "
        f"(most {max(lost):.3f}), which is {statistics.median(one['lost_s'] / one['step_s'] for one in rounds):.2f} "
        f"steps"
    )
    if options.json is not None:
        write(options.json, settings_of(options), rounds)


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, float]]:
    """Return the times of each newcomer, in seconds."""
    workers: list[subprocess.Popen[bytes]] = []
    rounds: list[dict[str, float]] = []

    def begin(rank: int, **more: str) -> subprocess.Popen[bytes]:
        return start([str(LOAD)], variables | {"REDUCTION_RANK": str(rank)} | more, folder, rank)

    def steps(worker: subprocess.Popen[bytes], count: int) -> Lines:
        """Return a worker's lines once there are at least this many."""
        wait_until(lambda: len(lines_of(folder, worker.pid)) >= count, f"a step of worker {worker.pid}")
        return lines_of(folder, worker.pid)

    with closing(Reducers(options.reducers)) as reducers:
        variables = environment(folder, options.pause) | {"MEGABYTES": str(options.megabytes)}
        variables |= of_job("joining", folder, reducers, options.workers)
        try:
            workers += map(begin, range(options.workers))
            first = steps(workers[0], 10)
            for number in range(options.joins):
                newcomer = begin(options.workers, STEPS="5")
                asked, joined = (line["at"] for line in steps(newcomer, 2)[:2])
                assert newcomer.wait(PATIENCE_S) == 0
                first = steps(workers[0], len(first) + 10)
                rounds.append(_cost(first, asked, joined))
                print(f"newcomer {number}: {rounds[-1]}", flush=True)
        except RanksFailed as error:
            raise RanksFailed(f"{error}\n{log_of(folder)}") from error
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    return rounds


def _cost(lines: Lines, asked: float, joined: float) -> dict[str, float]:
    steps = [(after["at"] - before["at"], after["at"]) for before, after in itertools.pairwise(lines[1:])]
    # Starting a newcomer alone uses much of this machine's processor, so the steps before its first request are the
    # baseline.
    alone = statistics.median(took for took, at in steps if at < asked and took < 10)
    during = [took for took, at in steps if asked <= at - took / 2 and at <= joined + 0.001]
    return {
        "step_s": round(alone, 4),
        "longest_s": round(max(during, default=0), 4),
        "lost_s": round(sum(during) - alone * len(during), 4),
        "join_s": round(joined - asked, 4),
    }


if __name__ == "__main__":
    main()

"""Chaos: reducers are continually killed, stopped or terminated. This may slow a training, but not change its bits.

    python -m benchmarks.chaos --kills 200 --every 1.0
    python -m benchmarks.chaos --kills 200 --every 2.0 --reducers 1
    python -m benchmarks.chaos --kills 10 --every 15 --signal STOP
    python -m benchmarks.chaos --kills 200 --reducers 2 --colocated    # as root
    python -m benchmarks.chaos --history FILE && python -m tests.history FILE

Worker processes train a small model under DDP over reducer processes on loopback. At random
times a reducer gets a signal, and is restarted on the same address, as systemd would do. With
--colocated each rank and reducer has its own host (a network namespace), and the reducers on the
ranks' hosts are struck too; their ranks restart them. Afterwards the same steps are trained without
any signals. The exit code is 0 if all ranks and both trainings ended with the same bits and no step
took 60 s, 1 if not, or if a process failed, 2 if the machine lacks something, and 130 if the run was
interrupted. With --history every step reduces some additional tensors, and `tests.history` checks
their sums independently.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from benchmarks.chaos.course import Course, run
from benchmarks.chaos.report import figures, lines
from benchmarks.method import results
from benchmarks.method.experiment import Line, at_least, settings_of
from benchmarks.method.progress import kept

SIGNALS = ("KILL", "STOP", "TERM")


def main() -> None:
    given, course = parse(), Course()
    say(f"seed {given.seed}: {given.strikes} x SIG{given.signal}, one every {given.every_s:g} s")
    with kept("chaos", lambda: keep(given, course)):
        run(given, course, say)


def keep(given: Namespace, course: Course) -> None:
    """Print the results, and write them to the file, with the reason if the run ended early."""
    error = sys.exception()
    if given.out is not None:
        failure = "" if error is None else str(error) if isinstance(error, Exception) else "interrupted"
        results.write(
            given.out, settings_of(given), (), failure=failure, **({} if error else figures(course))
        )
    if error is None:
        say("\n".join(lines(given, course)))


def say(text: str) -> None:
    print(text, flush=True)


def parse() -> Namespace:
    line = Line("chaos", __doc__, workers=4, reducers=3, seed=1)
    add = line.add_argument
    add("--kills", type=at_least(1), default=200, dest="strikes", help="number of signals (%(default)s)")
    every = "mean seconds between two signals (%(default)s)"
    add("--every", type=at_least(0.001, float), default=1.0, dest="every_s", help=every)
    add("--signal", choices=SIGNALS, default="KILL", help="which signal (%(default)s)")
    add("--transport", choices=("auto", "tcp", "grpc"), default="auto", help="(%(default)s)")
    add("--colocated", action="store_true", help="the ranks' hosts have reducers too")
    seconds = at_least(0.0, float)
    after = "seconds from the end of a reducer to its restart (%(default)s)"
    add("--restart-after", type=seconds, default=0.1, dest="restart_after_s", help=after)
    stop = "seconds from STOP to CONT (%(default)s)"
    add("--stop-for", type=seconds, default=8.0, dest="stop_for_s", help=stop)
    add("--out", type=Path, help="JSON file with every strike")
    add("--history", type=Path, help="file for `python -m tests.history`: what every rank reduced")
    given = line.parse_args()
    if not given.reducers and not given.colocated:
        line.error("without --colocated there must be reducers")
    if given.colocated and given.signal == "STOP":
        line.error("--colocated goes with KILL and TERM only: nobody would wake these reducers again")
    return given


if __name__ == "__main__":
    main()

"""Chaos: reducers are killed, stopped or terminated all the time. A training may get slower by it, but not different.

    python -m benchmarks.chaos --kills 200 --every 1.0
    python -m benchmarks.chaos --kills 200 --every 2.0 --reducers 1
    python -m benchmarks.chaos --kills 10 --every 15 --signal STOP
    python -m benchmarks.chaos --kills 200 --reducers 2 --colocated    # as root
    python -m benchmarks.chaos --history FILE && python -m tests.history FILE

Worker processes train a small model under DDP over reducer processes on loopback. At random
instants a reducer gets a signal, and a supervisor starts it again on the same address, as systemd
would. With --colocated ranks and reducers are on hosts of their own (network namespaces), and the
reducers on the ranks' hosts are struck too; their ranks start them again. Then the same steps are
trained without any signals. The exit code is 0 if all ranks and both trainings ended with the same
bits and no step took 60 s, 1 if not, or if a process failed, and 130 if it was interrupted. With
--history every step reduces some more tensors, and the second command folds them again by itself.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.chaos.course import ChaosFailed, Settings, run
from benchmarks.chaos.reducers import ReducersFailed
from benchmarks.chaos.report import document, lines
from benchmarks.lab.network import NetworkUnavailable
from benchmarks.lab.ranks import RanksFailed

SIGNALS = ("KILL", "STOP", "TERM")


def main() -> None:
    settings, out, history = _arguments()
    # SIGTERM, which `timeout` and supervisors send, ends this process as Ctrl-C does, so that its
    # children end, too. SIGINT is set as well, because a shell's background jobs ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    say(f"seed {settings.seed}: {settings.strikes} x SIG{settings.signal}, one every {settings.every_s:g} s")
    course, failure, code = None, "", 0
    try:
        course = run(settings, say, history)
    except (ChaosFailed, RanksFailed, ReducersFailed, NetworkUnavailable) as error:
        failure, code = str(error), 1
    except KeyboardInterrupt:
        failure, code = "interrupted", 130
    if out is not None:
        out.write_text(json.dumps(document(settings, course, failure), indent=1) + "\n")
    say("\n".join(lines(settings, course)) if course is not None else f"failed: {failure}")
    sys.exit(code)


def say(text: str) -> None:
    print(text, flush=True)


def _arguments() -> tuple[Settings, Path | None, Path | None]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many signals (%(default)s)")
    parser.add_argument("--every", type=float, default=1.0, help="mean seconds between two (%(default)s)")
    parser.add_argument("--signal", choices=SIGNALS, default="KILL", help="which (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--reducers", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--transport", choices=("auto", "tcp", "grpc"), default="auto", help="(%(default)s)")
    parser.add_argument("--colocated", action="store_true", help="the ranks' hosts have reducers too")
    parser.add_argument(
        "--restart-after", type=float, default=0.1, help="seconds from its end to its start (%(default)s)"
    )
    parser.add_argument("--stop-for", type=float, default=8.0, help="seconds from STOP to CONT (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of schedule, weights and data (%(default)s)")
    parser.add_argument("--out", type=Path, help="JSON file with every strike")
    parser.add_argument(
        "--history", type=Path, help="file for `python -m tests.history`: what every rank reduced"
    )
    given = parser.parse_args()
    for name in (
        ("kills", "workers", "every") if given.colocated else ("kills", "workers", "reducers", "every")
    ):
        if getattr(given, name) <= 0:
            parser.error(f"--{name} is {getattr(given, name)}, it must be more than 0")
    if given.colocated and given.signal == "STOP":
        parser.error("--colocated goes with KILL and TERM only: nobody would wake these reducers again")
    for name in ("reducers", "restart_after", "stop_for"):
        if getattr(given, name) < 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}, it must not be negative")
    settings = Settings(
        strikes=given.kills,
        every_s=given.every,
        signal=given.signal,
        workers=given.workers,
        reducers=given.reducers,
        transport=given.transport,
        colocated=given.colocated,
        restart_after_s=given.restart_after,
        stop_for_s=given.stop_for,
        seed=given.seed,
    )
    return settings, given.out, given.history


if __name__ == "__main__":
    main()

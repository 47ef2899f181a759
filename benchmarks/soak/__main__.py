"""A soak: random all-reduces for a long time, each checked. It fails if a process grows.

    python -m benchmarks.soak --minutes 30 --transport tcp,grpc --workers 3 --reducers 2

Ranks and reducers are processes on loopback, and every transport gets new ones. Every few seconds
the ranks wait for all collectives in flight, and the memory, threads and descriptors of every
process are read. From time to time all ranks leave their job and begin another one. The exit code
is 0 if no process grew, 1 if one grew or a sum was wrong, and 130 if the run was interrupted.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict

from reduction.errors import ConfigError

from benchmarks.lab.ranks import RanksFailed
from benchmarks.method import results
from benchmarks.method.experiment import Line, listed, settings_of, table
from benchmarks.method.progress import kept
from benchmarks.soak.course import Course, judged, soak
from benchmarks.soak.flatness import (
    COLUMNS,
    HEAP_ALLOWANCE_BYTES,
    MIB,
    REGIONS_ALLOWANCE,
    RSS_ALLOWANCE_BYTES,
    SAMPLES_MIN,
    THREADS_ALLOWANCE,
)
from benchmarks.soak.load import WORKERS_MAX
from worker_plugin.config import PluginConfig


def report(course: Course, settings: Namespace) -> list[str]:
    """Return the printed report of a course."""
    lines = [
        f"{course.transport}: {course.collectives} all-reduces, {course.tensor_bytes / 1e9:.2f} GB per rank, "
        f"{course.jobs} jobs, {course.seconds:.0f} s, {settings.workers} workers, {settings.reducers} reducers, "
        f"seed {settings.seed}; all sums right"
        if not course.failure
        else f"{course.transport}: {course.failure}"
    ]
    if course.verdicts:
        lines += ["", *table(COLUMNS, course.verdicts), ""]
        lines.append(
            "medians of the second fifth of the time, and growth to the last. Allowed: "
            f"RSS {settings.rss_allowance_bytes / MIB:g} MiB, heap {HEAP_ALLOWANCE_BYTES / MIB:g} MiB, "
            f"{THREADS_ALLOWANCE} threads, no descriptors but for {REGIONS_ALLOWANCE} of regions"
        )
    else:
        lines.append(f"not judged: fewer than {SAMPLES_MIN} samples")
    return [*lines, ""]


def main() -> None:
    settings = parse()
    courses: list[Course] = []
    with kept("soak", lambda: keep(settings, courses)):
        for transport in settings.transports:
            try:
                PluginConfig(transport=transport)
            except ConfigError as error:
                print(f"left out: {error}")
                continue
            courses.append(course := Course(transport))
            try:
                soak(settings, course)
            except RanksFailed as error:
                course.failure = f"failed: {error}"
            except BaseException:
                course.failure = f"interrupted after {course.seconds:.0f} s"
                raise
            finally:
                course.verdicts = judged(settings, course)
                print("\n".join(report(course, settings)), flush=True)
    is_bad = any(course.failure or any(verdict.grew for verdict in course.verdicts) for course in courses)
    sys.exit(int(is_bad or not courses))


def keep(settings: Namespace, courses: list[Course]) -> None:
    """Write all samples to a file."""
    path = settings.out / "soak.json"
    results.write(path, settings_of(settings), (), courses=[asdict(course) for course in courses])
    print(f"all samples: {path}")


def parse() -> Namespace:
    line = Line("soak", __doc__, workers=3, reducers=2, seed=1, out=results.RESULTS)
    add = line.add_argument
    add("--minutes", type=float, default=30.0, help="minutes for each transport (%(default)s)")
    transports = "transports to run one after the other (%(default)s)"
    add("--transport", type=listed(str), default="tcp,grpc", dest="transports", help=transports)
    add("--every", type=float, default=3.0, dest="every_s", help="seconds between samples (%(default)s)")
    reopen = "seconds until the ranks begin a new job; 0: one job only (%(default)s)"
    add("--reopen", type=float, default=30.0, dest="reopen_s", help=reopen)
    add("--size-mib", type=float, default=4.0, help="size of the largest tensor in MiB (%(default)s)")
    allowance = RSS_ALLOWANCE_BYTES / MIB
    add("--allowance-mib", type=float, default=allowance, help="allowed growth of RSS (%(default)s)")
    collect = (
        "run Python's garbage collector before each sample; memory that grows only without it is not leaked"
    )
    add("--collect", action="store_true", dest="collects", help=collect)
    given = line.parse_args()
    if not 2 <= given.workers <= WORKERS_MAX:
        line.error(f"--workers is {given.workers}, allowed are 2 to {WORKERS_MAX}")
    if given.minutes * 60 < SAMPLES_MIN * given.every_s:
        line.error(f"--minutes {given.minutes:g} holds fewer than {SAMPLES_MIN} samples")
    given.bytes_max, given.rss_allowance_bytes = int(given.size_mib * MIB), int(given.allowance_mib * MIB)
    return given


if __name__ == "__main__":
    main()

"""Workers of an elastic job are continually killed and restarted; the first one is hit as often as any other.

    python -m benchmarks.elastic                      100 kills, one every 5 s, back after 3 s: 9 minutes
    python -m benchmarks.elastic --kills 0            undisturbed, until the loss has fallen
    python -m benchmarks.elastic --kills 20 --rival   and then the same job under torchrun over Gloo, which restarts
                                                      all ranks from a checkpoint taken every minute
    python -m benchmarks.elastic --history FILE && python -m tests.history FILE

No survivor may end, and after every step all must have the same bits. Otherwise the exit code is 1.
With --history every step reduces some additional tensors, and `tests.history` checks their sums independently.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.elastic.course import EARLY_SAMPLES, Course, elastic, restarted
from benchmarks.lab.ending import ending_well
from benchmarks.method.experiment import Line, settings_of
from benchmarks.method.results import write


def main() -> None:
    tool = Line("elastic", __doc__, workers=4, reducers=2, seed=0, json=None)
    add = tool.add_argument
    add("--kills", type=int, default=100)
    every = "seconds between two kills (%(default)s)"
    add("--every", type=float, default=5.0, dest="every_s", help=every)
    back = "seconds until a killed worker is restarted"
    add("--back-after", type=float, default=3.0, dest="back_after_s", help=back)
    pause = "pause in each step that stands for its computation (%(default)s s)"
    add("--pause", type=float, default=0.05, dest="pause_s", help=pause)
    add("--reducers-too", action="store_true", help="kill a reducer at the same moment")
    add("--rival", action="store_true", help="also run the same job under torchrun")
    history = "file for `python -m tests.history`: what every worker reduced"
    add("--history", type=Path, metavar="FILE", help=history)
    options = tool.parse_args()
    ways = {"elastic": elastic} | ({"torchrun": restarted} if options.rival else {})
    rows = []
    with ending_well("elastic"):
        for name, run in ways.items():
            course = run(options, say)
            say(line(name, course))
            rows.append({"way": name} | dataclasses.asdict(course) | {"gap_s": course.gap_s()})
    if options.json is not None:
        write(options.json, settings_of(options), rows)


def say(text: str) -> None:
    print(text, flush=True)


def line(name: str, course: Course) -> str:
    """Return the results of a course as one line."""
    text = (
        f"{name}: {course.steps} steps, {course.samples / course.seconds:.0f} samples/s, {course.repeated} twice; "
        f"loss {course.early_loss:.3f} between samples {EARLY_SAMPLES[0]:,} and {EARLY_SAMPLES[1]:,}"
    )
    if name == "elastic":
        text += f"; {course.unused} uses of samples missing, {course.first} kills of the first worker"
    if (gap := course.gap_s()) is not None:
        text += f"; next step after a kill: median {gap['median']:.2f} s, 95 % within {gap['p95']:.2f}"
        text += f", at most {gap['maximum']:.2f}"
    return text


if __name__ == "__main__":
    main()

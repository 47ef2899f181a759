"""Data of the page's timeline: a few numbers of each view of the last minutes. No terminal, no network."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from reducer.observe.live.view import View

#: Number of remembered views. With one every 2 seconds they cover 5 minutes.
SAMPLES_MAX = 150
#: Number of jobs with lines. More could not be told apart.
JOBS_MAX = 6
#: The numbers of a job that have lines.
JOB_LINES = ("collectives_per_s", "received_per_s", "wait_p99_s")


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    #: Values of each job by title, in the order of JOB_LINES.
    jobs: dict[str, tuple[float | None, ...]]
    busiest: float | None


class History:
    """The latest SAMPLES_MAX views."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)

    def take(self, view: View) -> None:
        """Remember a view."""
        jobs = {job.title: tuple(getattr(job, name) for name in JOB_LINES) for job in view.jobs}
        used = [host.busiest for host in view.hosts if host.busiest is not None]
        self._samples.append(_Sample(view.at_s, jobs, max(used, default=None)))

    def to_json(self) -> dict[str, Any]:
        """Return a list of times, and as many numbers for each line, with None for missing values.

        The jobs are the latest JOBS_MAX, in the order in which they were first seen.
        """
        titles = list(dict.fromkeys(title for sample in self._samples for title in sample.jobs))[-JOBS_MAX:]
        nothing = (None,) * len(JOB_LINES)
        return {
            "at_s": [round(sample.at_s, 3) for sample in self._samples],
            "jobs": [
                {"title": title}
                | {
                    name: [_rounded(sample.jobs.get(title, nothing)[index]) for sample in self._samples]
                    for index, name in enumerate(JOB_LINES)
                }
                for title in titles
            ],
            "busiest": [_rounded(sample.busiest) for sample in self._samples],
        }


def _rounded(value: float | None) -> float | None:
    """Round to as many digits as are visible on a screen."""
    return None if value is None else float(f"{value:.4g}")

"""`Reporter`: logs rank 0's line every `report_s`, on the I/O loop, with the reducers' information about ranks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from reduction.client.access import Access
from reduction.model import JobStatus
from reduction.timeline.parts import chunk_time
from reduction.timeline.stragglers import last_ranks, straggler, waited_for

from worker_plugin.process import log_setup
from worker_plugin.timeline.recorder import KEPT, Recorder
from worker_plugin.timeline.report import Report
from worker_plugin.timeline.stats import shares
from worker_plugin.transports.status_call import ask

log = logging.getLogger(__name__)


class Reporter:
    """Logs the line of one communicator's rank 0.

    Args:
        recorder: the rank's.
        job: its name, as known to the reducers.
        group: the ranks of the process group, as in `Join`.
        title: the name shown to people.
        world_size: of the communicator.
        link_mbit: rate of this host's link; 0: unknown.
    """

    def __init__(
        self, recorder: Recorder, job: str, group: str, title: str, world_size: int, link_mbit: int
    ) -> None:
        self._recorder = recorder
        self._key = job, group
        self._title = title
        self._world_size = world_size
        self._link_mbit = link_mbit
        #: The best rate of all rounds so far, in bytes per second.
        self._rate = 0.0
        self._before: dict[str, JobStatus] = {}
        self._begin = time.monotonic()
        self._steps = 0
        self._collectives = 0

    async def run(self, interval_s: float, accesses: Callable[[], Mapping[str, Access]]) -> None:
        """Log the line until cancelled. Intervals without a collective get none.

        Args:
            interval_s: time between two lines.
            accesses: returns the credentials for each reducer, by address.
        """
        while True:
            await asyncio.sleep(interval_s)
            report = await self.report(accesses())
            if report.collectives:
                log_setup.announce(log, report.line())

    async def report(self, accesses: Mapping[str, Access]) -> Report:
        """Return what has happened since the last report."""
        now = {}
        for address, status in (await ask(accesses)).items():
            for job in status.jobs:
                if (job.job, job.group) == self._key:
                    now[address] = job
        counts, waits = last_ranks((job, self._before.get(address)) for address, job in now.items())
        totals, end = self._recorder.totals, time.monotonic()
        exposed = self._recorder.exposed
        spans = self._recorder.latest(KEPT, self._begin)
        found = straggler(counts, waits, self._world_size) or waited_for(counts, waits)
        if found is not None and not found.is_cause(chunk_time(span for span in spans if span.seq)):
            found = None
        planes = [job.planes for job in now.values()]
        report = Report(
            job=self._title,
            seconds=end - self._begin,
            steps=totals.steps - self._steps,
            collectives=totals.collectives - self._collectives,
            # This takes 20 ms for 1024 collectives, too long for the loop.
            shares=await asyncio.to_thread(shares, spans, totals, self._link_mbit, self._rate),
            exposed_s=None if exposed is None else await asyncio.to_thread(exposed),
            straggler=found,
            is_shared=bool(planes) and not any(plane.tcp or plane.grpc for plane in planes),
        )
        self._rate = report.shares.rate
        self._before, self._begin = now, end
        self._steps, self._collectives = totals.steps, totals.collectives
        return report

"""The numbers of `ReductionState.stats`, computed from a communicator's totals and its latest collectives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from reduction.timeline.parts import (
    Parts,
    begun_by_own_clock,
    best_rate,
    ideal,
    parts,
    rounds,
    shortest_answers,
)
from reduction.timeline.record import Span

from worker_plugin.timeline.recorder import Recorder
from worker_plugin.timeline.totals import Totals

#: Maximum number of latest collectives that times and rates are based on.
LATEST = 128
#: Upper limit on the fraction of time spent recomputing them, which amounts to about once a second. A script may ask
#: after each step, and all ranks wait for any rank that computes.
COST_MAX = 0.002


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the time of some collectives went. Times are seconds of all rounds together (timeline/parts.py)."""

    parts: Parts
    #: How long the bytes take at the link's rate, or at the best rate seen.
    ideal: float
    #: The shortest time from a first push to its first result; 0 before there is one.
    answer: float
    #: The rate of the ideal, in bytes of contributions per second; 0 before there is one.
    rate: float

    @property
    def ranks(self) -> float:
        """Seconds known to have been spent waiting for ranks."""
        return sum(self.parts.ranks.values())

    @property
    def transfer(self) -> float:
        """Seconds that the transfer took beyond the ideal."""
        return self.parts.transfer - self.ideal

    @property
    def algbw(self) -> float:
        """Bytes of contributions per second."""
        return self.parts.nbytes / self.parts.measured if self.parts.measured > 0 else 0.0

    @property
    def efficiency(self) -> float:
        """The ideal as a fraction of the time; 0 before there is any."""
        return self.ideal / self.parts.measured if self.parts.measured > 0 else 0.0


def shares(spans: Sequence[Span], totals: Totals, link_mbit: int, seen: float = 0.0) -> Shares:
    """Return where the time of these collectives went.

    Args:
        spans: of one rank. The first of all includes waiting for the start, so it does not count.
        totals: give the number of bytes sent per byte of a contribution.
        link_mbit: the rate of this host's link; 0: unknown.
        seen: the best rate of earlier rounds. In the present ones, a rank may be late every time.
    """
    spans = [span for span in spans if span.seq]
    begun = begun_by_own_clock(spans)
    of_rounds = [parts(group, begun) for group in rounds(spans)]
    sent = totals.bytes_pushed / totals.bytes_contributed if totals.bytes_contributed else 1.0
    rate = link_mbit * 1e6 / 8 / sent if link_mbit and sent else max(seen, best_rate(of_rounds))
    found = Parts()
    for one in of_rounds:
        found += one
    answers = shortest_answers(spans)
    best = sum(ideal(one, rate) for one in of_rounds)
    return Shares(found, best, min(answers.values(), default=0.0), rate)


class Numbers:
    """The numbers of one state. For any thread."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._shares: Shares | None = None
        self._fresh_until = 0.0

    def read(self, recorder: Recorder, link_mbit: int) -> dict[str, float]:
        """Return the numbers of a communicator; see `ReductionState.stats` for their meaning."""
        begin = time.monotonic()
        latest = self._shares
        is_stale = self._recorder is not recorder or begin >= self._fresh_until
        if latest is None or not latest.parts.rounds or is_stale:
            seen = latest.rate if latest is not None and self._recorder is recorder else 0.0
            latest = shares(recorder.latest(LATEST), recorder.totals, link_mbit, seen)
            end = time.monotonic()
            self._recorder, self._shares = recorder, latest
            self._fresh_until = end + (end - begin) / COST_MAX
        return _numbers(recorder.totals, latest)


def _numbers(totals: Totals, latest: Shares) -> dict[str, float]:
    count = latest.parts.rounds or 1
    return {
        "collectives": totals.collectives,
        "in_flight": totals.in_flight,
        "steps": totals.steps,
        "bytes_pushed": totals.bytes_pushed,
        "bytes_pulled": totals.bytes_pulled,
        "bytes_repushed": totals.bytes_repushed,
        "epochs": totals.epochs,
        "resharded": totals.resharded,
        "reducers": totals.reducers,
        "retransmits": totals.retransmits,
        "comm_s": totals.comm_s,
        "rtt_s": latest.answer,
        "round_s": latest.parts.measured / count,
        "ideal_s": latest.ideal / count,
        "copy_s": latest.parts.copy / count,
        "credit_s": latest.parts.credit / count,
        "ranks_s": latest.ranks / count,
        "transfer_s": latest.transfer / count,
        "copy_back_s": latest.parts.copy_back / count,
        "algbw": latest.algbw,
        "efficiency": latest.efficiency,
    }

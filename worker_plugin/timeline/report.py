"""Rank 0's regular report line: how the collectives are doing, and the one thing to look at first."""

from __future__ import annotations

from dataclasses import dataclass

from reduction.timeline.stragglers import Straggler
from reduction.timeline.verdict import WORTH_IT

from worker_plugin.timeline.stats import Shares


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in one interval."""

    job: str
    #: The length of the interval.
    seconds: float
    steps: int
    collectives: int
    shares: Shares
    #: Exposed time of the latest step that DDP has measured, or None if there is none.
    exposed_s: float | None
    #: The rank that was waited for in this interval, according to the reducers.
    straggler: Straggler | None
    #: Whether all streams go through shared memory, so that no network is involved.
    is_shared: bool

    def line(self) -> str:
        """Return the line: key=value, in this order, `cause` last and in quotes. Documented in docs/operating.md."""
        parts, count = self.shares.parts, self.shares.parts.rounds or 1
        times = {
            "step_s": self.seconds / self.steps if self.steps else None,
            "round_s": parts.measured / count,
            "exposed_s": self.exposed_s,
            "ideal_s": self.shares.ideal / count,
            "copy_s": parts.copy / count,
            "credit_s": parts.credit / count,
            "ranks_s": self.shares.ranks / count,
            "transfer_s": self.shares.transfer / count,
            "copy_back_s": parts.copy_back / count,
        }
        look_at, cause = self.cause()
        fields = [
            # Job names may contain spaces and quotes.
            f"job={self.job.replace(' ', '_')}",
            f"seconds={self.seconds:.1f}",
            f"steps={self.steps}",
            f"collectives={self.collectives}",
            *(f"{name}={'-' if value is None else f'{value:.6f}'}" for name, value in times.items()),
            f"bytes={parts.nbytes // count}",
            f"algbw={self.shares.algbw:.0f}",
            f"efficiency={self.shares.efficiency:.3f}",
            f"look_at={look_at}",
            f'cause="{cause}"',
        ]
        return "report " + " ".join(fields)

    def cause(self) -> tuple[str, str]:
        """Return a word for the one thing to look at first, and a sentence about it."""
        shares, parts = self.shares, self.shares.parts
        if not parts.measured or (1 - shares.efficiency < WORTH_IT and self.straggler is None):
            return "nothing", f"{100 * shares.efficiency:.0f} % of the time is what the bytes take"
        way = "reducers" if self.is_shared else "network"
        lost = {
            "copy": parts.copy + parts.copy_back,
            "gil": parts.credit,
            "ranks": shares.ranks,
            way: shares.transfer,
        }
        if self.straggler is not None:
            # To a rank that waits for it, a rank that is always late looks like a slow network.
            waited = min(parts.transfer, self.straggler.share * self.straggler.wait_s * parts.collectives)
            lost["ranks"], lost[way] = max(lost["ranks"], waited), max(0.0, lost[way] - waited)
        word = max(lost, key=lambda name: lost[name])
        if word == "ranks" and self.straggler is not None:
            return f"rank_{self.straggler.rank}", self.straggler.advice(is_shared=self.is_shared)
        return word, f"{100 * lost[word] / parts.measured:.0f} % {_SENTENCES[word]}"


_SENTENCES = {
    "copy": "of the time are copies between tensors and the memory that is sent: look for other work on these cores",
    "gil": "of the time collectives wait to be sent: look for Python threads that keep this process busy",
    "ranks": "of the time other ranks had not begun: reducer trace says which",
    "network": "of the time is spent beyond what the bytes take: see reducer status, the reducers' CPU, the links",
    "reducers": "of the time is spent beyond what the bytes take, which are in shared memory: see reducer status, and "
    "whether ranks and reducers have enough cores",
}

"""The rows of the GIL benchmark's table. README.md defines the columns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gil.load import Turn

#: The ranks' turns of one kind, in each round.
Rounds = Sequence[Sequence[Turn]]
Quartiles = tuple[float, float, float]


@dataclass(slots=True)
class Measured:
    """The turns of one contender, by round and rank."""

    spinning: list[list[Turn]] = field(default_factory=list)
    waiting: list[list[Turn]] = field(default_factory=list)


def row(name: str, idle: Rounds, kept: Measured) -> dict[str, Any]:
    """Return the row of a contender. Turns are compared only within a round."""
    rounds = list(zip(idle, kept.spinning, kept.waiting, strict=True))

    def over(function: Callable[[Sequence[Turn], Sequence[Turn], Sequence[Turn]], float]) -> Quartiles:
        return _quartiles([function(*round_) for round_ in rounds])

    return {
        "contender": name,
        "loop_speed": over(lambda free, spin, _: _speed(spin) / _speed(free)),
        "cpu": over(lambda _, spin, __: _share(spin, "cpu_s")),
        "queued": over(lambda _, spin, __: _share(spin, "queued_s")),
        "blocked": over(lambda _, spin, __: _share(spin, "blocked_s")),
        "lost_s_per_gb": over(lambda free, spin, _: _lost_s(free, spin) / _gb(spin)),
        "waiting_gb_s": over(lambda _, __, wait: _rate(wait)),
        "spinning_gb_s": over(lambda _, spin, __: _rate(spin)),
        "kept_bandwidth": over(lambda _, spin, wait: _rate(spin) / _rate(wait)),
    }


def _quartiles(values: Sequence[float]) -> Quartiles:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def _speed(turns: Sequence[Turn]) -> float:
    return statistics.mean(turn.loops / turn.seconds for turn in turns)


def _share(turns: Sequence[Turn], quantity: str) -> float:
    return statistics.mean(getattr(turn, quantity) / turn.seconds for turn in turns)


def _lost_s(free: Sequence[Turn], spin: Sequence[Turn]) -> float:
    """Return the seconds by which the loops of a turn took longer than with nothing in flight."""
    pairs = zip(free, spin, strict=True)
    return statistics.mean(turn.seconds - turn.loops * idle.seconds / idle.loops for idle, turn in pairs)


def _gb(turns: Sequence[Turn]) -> float:
    """Return the GB (1e9 bytes) that one rank reduced."""
    return turns[0].tensor_bytes / 1e9


def _rate(turns: Sequence[Turn]) -> float:
    return _gb(turns) / max(turn.seconds for turn in turns)


HEAD = [
    *("in flight", "loop speed (quartiles)", "main thread: on a core", "waits for a core", "blocked"),
    *("loop s lost per GB", "GB/s, main waits", "GB/s, main computes", "bandwidth kept (quartiles)"),
]


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table whose head is HEAD."""

    def share(name: str) -> str:
        return "{1:.0%} ({0:.0%}-{2:.0%})".format(*row[name])

    return [
        row["contender"],
        share("loop_speed"),
        *(f"{row[name][1]:.0%}" for name in ("cpu", "queued", "blocked")),
        f"{row['lost_s_per_gb'][1]:.2f}",
        *(f"{row[name][1]:#.3g}" for name in ("waiting_gb_s", "spinning_gb_s")),
        share("kept_bandwidth"),
    ]


def idle_cells(idle: Rounds) -> list[str]:
    """Return the table's row for nothing in flight."""
    shares = [statistics.median(_share(turns, name) for turns in idle) for name in _SHARES]
    return ["nothing", "100%", *(f"{share:.0%}" for share in shares), "", "", "", ""]


_SHARES = ("cpu_s", "queued_s", "blocked_s")
